#include "cli/session/code_runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/console/environment.h"
#include "cli/session/line_server.h"
#include "cli/session/python_package.h"
#include "cli/session/sibling_program.h"
#include "core/code_name.h"
#include "core/input_file.h"
#include "core/model/json_input.h"
#include "core/model/sources/model_code.h"
#include "core/output_file.h"
#include "core/text/digest.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMostText = Bytes{64} << 20;  // of a config.json, of a model.json

Result<std::string> users_python() {
  const std::string wanted = variable("FORESHARD_PYTHON");
  const std::string name = wanted.empty() ? "python3" : wanted;
  const std::string path = name.find('/') == name.npos ? find_program(name) : name;
  if (!path.empty() && ::access(path.c_str(), X_OK) == 0) return path;
  return fail({ErrorCode::NotFound,
               "there is no Python here to run the model's code",
               {},
               wanted.empty() ? "PATH" : "FORESHARD_PYTHON",
               "a Python with torch and transformers",
               name,
               "install them, or set FORESHARD_PYTHON to such a Python"});
}

/// Releases of what decides the operators, without importing any of it.
std::string versions_of(const std::string& python) {
  const char* ask =
      "import importlib.metadata as m\n"
      "def of(n):\n"
      "    try: return m.version(n)\n"
      "    except m.PackageNotFoundError: return '-'\n"
      "print(*map(of, ('torch', 'transformers', 'timm')))";
  return capture_program(python, {"-c", ask}).printed;
}

/// When the code that captures was last changed.
std::string age_of(const std::string& package) {
  fs::file_time_type newest{};
  std::error_code code;
  for (const char* folder : {"", "capture"})
    for (fs::directory_iterator at(fs::path(package) / folder, code), end; !code && at != end; at.increment(code))
      if (at->path().extension() == ".py") newest = std::max(newest, at->last_write_time(code));
  return std::to_string(newest.time_since_epoch().count());
}

/// As foreshard.from_code takes them.
std::vector<std::string> words_of(const ModelCode& code) {
  // Whole: the folder's name is the model's.
  std::vector<std::string> words{is_code_name(code.source) ? code.source : fs::absolute(code.source).string()};
  const auto add = [&](const char* flag, const std::string& value) { words.insert(words.end(), {flag, value}); };
  add("--batch", std::to_string(code.batch)), add("--seq", std::to_string(code.seq));
  add("--target-seq", std::to_string(code.target_seq));
  add("--dtype", code.dtype ? std::string(dtype_name(*code.dtype)) : "config");
  if (code.compute_dtype) add("--param", std::string(dtype_name(*code.compute_dtype)));
  if (code.buffer_dtype) add("--buffer", std::string(dtype_name(*code.buffer_dtype)));
  add("--attention", code.eager_attention ? "eager" : "sdpa");
  return words;
}

Error told(const ModelCode& code, const nlohmann::json& said) {
  const auto text = [&](const char* key) { return said.value(key, std::string()); };
  return {ErrorCode::Unsupported, text("message"), code.source, text("place"),
          text("expected"),       text("got"),     text("hint")};
}

/// Beside the text.
struct Answer {
  nlohmann::json notes = nlohmann::json::array();
  bool worked_out = false;  // from other sizes
};

class Runner {
 public:
  explicit Runner(const Console& console) : console_(console) {}

  Result<std::string> operator()(const ModelCode& code) {
    const std::scoped_lock one_at_a_time(mutex_);
    if (auto ready = begin(); !ready) return fail(ready.error());
    const auto key = key_of(code);
    if (!key) return fail(key.error());
    if (const auto known = made_.find(*key); known != made_.end()) return known->second;
    Answer answer;
    Result<std::string> text = is_code_name(code.source) ? captured(code, answer) : captured_or_kept(code, *key);
    made_.emplace(*key, text);  // what failed fails again
    ran_functions_ = ran_functions_ || is_code_name(code.source);
    return text;
  }

  /// Another verb of the same process: functions are run anew, in an interpreter that knows nothing of them.
  void begin_verb() {
    const std::scoped_lock one_at_a_time(mutex_);
    if (!std::exchange(ran_functions_, false)) return;
    made_.clear();
    server_.stop();
  }

 private:
  Result<void> begin() {
    if (!python_.empty()) return {};
    const auto package = find_python_package();
    if (!package) return fail(package.error());
    const auto python = users_python();
    if (!python) return fail(python.error());
    package_ = *package;
    python_ = *python;
    versions_ = versions_of(python_) + age_of(package_);
    return {};
  }

  /// All that decides what is captured.
  Result<std::string> key_of(const ModelCode& code) const {
    std::string of_source;
    if (!is_code_name(code.source)) {
      auto text = read_text_file(code.source, kMostText);
      if (!text) return text;
      of_source = std::move(*text);
    }
    std::string key = python_ + '\n' + versions_ + '\n';
    for (const std::string& word : words_of(code)) key += word + '\n';
    return key + of_source;
  }

  Result<std::string> captured_or_kept(const ModelCode& code, const std::string& key) {
    const std::string folder = cache_folder();
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    const std::string kept = folder + "/" + digest_of(key) + ".model.json",
                      notes = folder + "/" + digest_of(key) + ".notes";
    if (fs::exists(kept, ignored)) {
      if (const auto text = read_text_file(notes, kMostText)) tell(nlohmann::json::parse(*text, nullptr, false));
      return read_text_file(kept, kMostText);
    }
    Answer answer;
    auto text = captured(code, answer);
    if (!text || answer.worked_out) return text;
    auto done = answer.notes.empty() ? Result<void>() : write_whole_file(notes, answer.notes.dump());
    if (done) done = write_whole_file(kept, *text);
    if (!done) console_.note(fmt::format("what was captured cannot be kept: {}", to_text(done.error())));
    return text;
  }

  Result<std::string> captured(const ModelCode& code, Answer& said) {
    std::error_code where;
    std::string path = (fs::temp_directory_path(where) / "foreshard-XXXXXX").string();
    const int file = where ? -1 : ::mkstemp(path.data());
    if (file < 0) return fail(failed(code, "there is no folder for temporary files; set TMPDIR"));
    ::close(file);
    Result<std::string> text = captured_into(path, code, said);
    ::unlink(path.c_str());
    return text;
  }

  Result<std::string> captured_into(const std::string& path, const ModelCode& code, Answer& said) {
    // The package's folder stands where the working folder would: a user's files shadow no library.
    const char* begin = "import sys; sys.path[0] = sys.argv[1]; from foreshard.code_server import serve; serve()";
    const std::string why = server_.start(python_, {"-c", begin, fs::path(package_).parent_path().string()});
    if (!why.empty()) return fail(failed(code, why));
    if (told_.insert(code.source).second)
      console_.note(fmt::format("{} is captured by its own code, in {}", code.source, python_));
    const nlohmann::json question{{"words", words_of(code)}, {"output", path}};
    const std::string line = server_.ask(question.dump());
    if (line.empty()) return fail(failed(code, fmt::format("Python ended with exit code {}", server_.exit_code())));
    const auto answer = nlohmann::json::parse(line, nullptr, false);
    if (!answer.is_object()) return fail(failed(code, "an answer that is none"));
    if (answer.contains("error")) return fail(told(code, answer.at("error")));
    said.notes = answer.value("notes", nlohmann::json::array());
    said.worked_out = answer.value("worked_out", false);
    tell(said.notes);
    if (said.worked_out && told_.insert("worked out " + code.source).second)
      console_.note(
          fmt::format("{}: some sizes are worked out from those that were captured (docs/models.md)", code.source));
    return read_text_file(path, kMostText);
  }

  /// Each once.
  void tell(const nlohmann::json& notes) {
    for (const auto& note : notes)
      if (note.is_string() && told_.insert(note.get<std::string>()).second) console_.note(note.get<std::string>());
  }

  Error failed(const ModelCode& code, const std::string& how) const {
    return {ErrorCode::Unsupported,
            "the model's code could not be captured",
            code.source,
            {},
            "a model.json of it",
            how,
            fmt::format("see what it prints: PYTHONPATH={} {} -m foreshard.from_code {}",
                        fs::path(package_).parent_path().string(), python_, code.source)};
  }

  static std::string cache_folder() {
    for (const auto& [name, below] :
         {std::pair{"FORESHARD_CACHE", ""}, {"XDG_CACHE_HOME", "/foreshard"}, {"HOME", "/.cache/foreshard"}})
      if (const std::string folder = variable(name); !folder.empty()) return folder + below;
    std::error_code ignored;
    return fs::temp_directory_path(ignored).string() + "/foreshard";
  }

  const Console console_;
  std::mutex mutex_;
  std::string package_, python_, versions_;
  LineServer server_;
  std::map<std::string, Result<std::string>> made_;  // by key
  std::set<std::string> told_;
  bool ran_functions_ = false;
};

}  // namespace

void run_code_of_models(const Console& console) {
  static std::once_flag once;
  static std::shared_ptr<Runner> runner;
  std::call_once(once, [&console] {
    Console notes = console;
    // Who hears may have gone when another of a process's verbs has something to tell.
    if (std::exchange(notes.heard, nullptr) != nullptr) notes.quiet = true;
    runner = std::make_shared<Runner>(notes);
    set_code_runner([](const ModelCode& code) { return (*runner)(code); });
  });
  runner->begin_verb();
}

}  // namespace foreshard::cli
