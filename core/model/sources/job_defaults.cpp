#include "core/model/sources/job_defaults.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/input_file.h"
#include "core/model/json_input.h"

namespace foreshard {
namespace {

/// Reads "job" out of a document whose rest nobody wants yet.
class JobReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::string> take() { return is_model_ ? std::move(settings_) : std::vector<std::string>(); }

  bool null() override { return true; }
  bool boolean(bool value) override { return add(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return add(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return add(text); }
  bool string(string_t& value) override {
    if (depth_ == 1 && key_ == "schema") {
      is_model_ = value.starts_with("foreshard.model/");
      return is_model_ && !found_;
    }
    return add(value);
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    inside_ = depth_ == 1 && key_ == "job";
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && std::exchange(inside_, false)) found_ = true;
    return !found_ || !is_model_;
  }
  bool start_array(std::size_t) override { return ++depth_ > 1; }
  bool end_array() override { return --depth_ > 0; }
  bool key(string_t& name) override {
    key_ = name;
    return depth_ != 1 || name != "ops" || !is_model_;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool add(const std::string& value) {
    if (inside_ && depth_ == 2) settings_.push_back(key_ + "=" + value);
    return true;
  }

  std::string key_;
  int depth_ = 0;
  bool inside_ = false, found_ = false, is_model_ = false;
  std::vector<std::string> settings_;
};

/// The file, or what load_model takes out of a folder that holds no config.json.
std::string model_json_of(const std::string& source) {
  std::error_code ignored;
  const std::filesystem::path path(source);
  if (!std::filesystem::is_directory(path, ignored)) return source.ends_with(".json") ? source : std::string();
  return std::filesystem::exists(path / "config.json", ignored) ? std::string() : (path / "model.json").string();
}

}  // namespace

std::vector<std::string> job_defaults(const std::string& source) {
  const std::string file = model_json_of(source);
  if (file.empty()) return {};
  const Result<std::string> text = read_text_file(file, JsonLimits().max_text);
  if (!text) return {};
  JobReader reader;
  nlohmann::json::sax_parse(*text, &reader);
  return reader.take();
}

}  // namespace foreshard
