#include "traces/encodings/byte_file.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/output_file.h"

namespace foreshard {
namespace {

constexpr int kGzipLevel = 4;   // traces are large and repeat themselves: higher levels cost twice the time for 5 %
constexpr int kGzipMemory = 8;  // zlib's default
constexpr std::size_t kPackedRoom = 1U << 16U;

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

Error file_error(ErrorCode code, const std::string& path, std::string message, std::string got, std::string hint) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.file = path;
  error.expected = "a recording that can be read";
  error.got = std::move(got);
  error.hint = std::move(hint);
  return error;
}

struct PackedOutput::Impl {
  OutputFile file;
  bool packs = false;
  z_stream state{};
  std::string packed;  // room for one part

  explicit Impl(OutputFile output) : file(std::move(output)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (packs) deflateEnd(&state);
  }

  bool start_packing() {
    packs = deflateInit2(&state, kGzipLevel, Z_DEFLATED, kGzipWindow, kGzipMemory, Z_DEFAULT_STRATEGY) == Z_OK;
    packed.resize(kPackedRoom);
    return packs;
  }

  /// Z_FINISH writes what zlib still holds, and the end of the member.
  Result<void> pack(std::string_view bytes, int flush) {
    state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib only reads it
    state.avail_in = static_cast<uInt>(bytes.size());
    do {
      state.next_out = reinterpret_cast<Bytef*>(packed.data());
      state.avail_out = static_cast<uInt>(packed.size());
      deflate(&state, flush);
      const auto part = std::string_view(packed).substr(0, packed.size() - state.avail_out);
      if (auto written = file.write(part); !written) return written;
    } while (state.avail_out == 0);
    return {};
  }
};

PackedOutput::PackedOutput(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PackedOutput::PackedOutput(PackedOutput&&) noexcept = default;
PackedOutput& PackedOutput::operator=(PackedOutput&&) noexcept = default;
PackedOutput::~PackedOutput() = default;

Result<PackedOutput> PackedOutput::create(const std::string& path) {
  auto file = OutputFile::create(path);
  if (!file) return fail(file.error());
  auto impl = std::make_unique<Impl>(std::move(*file));
  if (ends_with(path, ".gz") && !impl->start_packing()) return fail(output_error(path, ENOMEM));
  return PackedOutput(std::move(impl));
}

Result<void> PackedOutput::write(std::string_view bytes) {
  if (!impl_->packs) return impl_->file.write(bytes);
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, std::size_t{1} << 30U);  // zlib counts in 32 bits
    if (auto written = impl_->pack(part, Z_NO_FLUSH); !written) return written;
    bytes.remove_prefix(part.size());
  }
  return {};
}

Result<void> PackedOutput::close() {
  if (impl_->packs) {
    if (auto ended = impl_->pack({}, Z_FINISH); !ended) return ended;
  }
  return impl_->file.commit();
}

}  // namespace foreshard
