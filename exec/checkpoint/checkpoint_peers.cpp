#include "exec/checkpoint/checkpoint_peers.h"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "core/text/utf8.h"

namespace foreshard::exec {
namespace {

std::string packed(const Error& error) {
  return nlohmann::json{
      static_cast<int>(error.code), error.message, error.file, error.place, error.expected, error.got, error.hint}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Error unpacked(const std::string& text) {
  const auto fields = nlohmann::json::parse(text);  // our own peers wrote it
  return {
      static_cast<ErrorCode>(fields[0].get<int>()), fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]};
}

}  // namespace

Result<std::vector<std::string>> gather_texts(Communicator* world, std::string_view mine) {
  if (size_of(world) == 1) return std::vector<std::string>{std::string(mine)};
  try {
    const auto size = static_cast<std::size_t>(world->size());
    std::vector<std::int64_t> counts(size);
    const auto own = static_cast<std::int64_t>(mine.size());
    world->all_gather(counts.data(), &own, 1, DType::Int64);
    std::string all(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})), '\0');
    world->all_gather_uneven(all.data(), mine.data(), counts, DType::UInt8);
    std::vector<std::string> texts;
    std::size_t begin = 0;
    for (const std::int64_t count : counts) {
      texts.push_back(all.substr(begin, static_cast<std::size_t>(count)));
      begin += static_cast<std::size_t>(count);
    }
    return texts;
  } catch (const std::exception& error) {
    Error peers;
    peers.code = ErrorCode::Inconsistent;
    peers.place = "train.checkpoint.dir";
    peers.message = "the ranks could not agree about a checkpoint";
    peers.expected = "all ranks until the end of the save";
    peers.got = first_line(error.what());
    return fail(std::move(peers));
  }
}

Result<void> agree(Communicator* world, const Result<void>& mine) {
  const auto texts = gather_texts(world, mine ? std::string() : packed(mine.error()));
  if (!texts) return fail(texts.error());
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    if ((*texts)[rank].empty()) continue;
    Error error = unpacked((*texts)[rank]);
    if (static_cast<int>(rank) != rank_of(world)) error.message = fmt::format("rank {}: {}", rank, error.message);
    return fail(std::move(error));
  }
  return {};
}

}  // namespace foreshard::exec
