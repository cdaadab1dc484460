#include "exec/communicators/nccl_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "exec/communicators/nccl_communicator.h"

namespace foreshard::exec {
namespace {

/// What the group's first rank leaves for the others.
struct Invitation {
  std::string version, id;
};

Rendezvous::Content bytes_of(const Invitation& invitation) {
  const std::string text = invitation.version + '\n' + invitation.id;
  return {text.begin(), text.end()};
}

Invitation invitation_of(const Rendezvous::Content& content) {
  const auto end = std::find(content.begin(), content.end(), '\n');
  return {std::string(content.begin(), end), end == content.end() ? "" : std::string(end + 1, content.end())};
}

Error group_error(const NcclGroup& group, std::string message, std::string hint) {
  return Error{.code = ErrorCode::Unsupported,
               .message = fmt::format("the group \"{}\" of ranks {} is not connected: {}", group.name,
                                      fmt::join(group.ranks, ", "), message),
               .hint = std::move(hint)};
}

Result<Invitation> invitation(Rendezvous& rendezvous, const NcclGroup& group) {
  const std::string key = fmt::format("nccl/{}/{}", group.name, fmt::join(group.ranks, ","));
  try {
    if (group.ranks.front() != rendezvous.rank()) return invitation_of(rendezvous.expect(key, group.timeout));
    const auto id = nccl_unique_id();
    if (!id) return fail(id.error());
    const Invitation own{nccl_version(), *id};
    rendezvous.set(key, bytes_of(own));
    return own;
  } catch (const std::runtime_error& error) {
    const auto word = rendezvous.reported_failure(std::chrono::milliseconds::zero());
    return fail(group_error(group,
                            word.value_or(fmt::format("rank {} has not come: {}", group.ranks.front(), error.what())),
                            "is it running, and can it reach MASTER_ADDR? --timeout says how long it is waited for"));
  }
}

}  // namespace

Result<std::shared_ptr<Communicator>> connect_nccl(Rendezvous& rendezvous, const NcclGroup& group) {
  const auto own = std::find(group.ranks.begin(), group.ranks.end(), rendezvous.rank());
  FORESHARD_CHECK(own != group.ranks.end(), "a rank connects groups that it is in");
  const auto invited = invitation(rendezvous, group);
  if (!invited) return fail(invited.error());
  if (const std::string version = nccl_version(); invited->version != version) {
    Error error = group_error(group, "the ranks have different versions of NCCL", "");
    error.expected = fmt::format("NCCL {}, as on rank {}", invited->version, group.ranks.front());
    error.got = fmt::format("NCCL {} on rank {}", version, rendezvous.rank());
    error.hint = "the same libnccl.so.2 on all machines; `foreshard doctor` names the one that is loaded";
    return fail(std::move(error));
  }
  NcclOptions options{.rank = static_cast<int>(own - group.ranks.begin()),
                      .size = static_cast<int>(group.ranks.size()),
                      .device = group.device,
                      .timeout = group.timeout,
                      .register_buffers = group.register_buffers};
  options.word_of_others = [&rendezvous] {
    return rendezvous.reported_failure(std::chrono::milliseconds::zero()).value_or("");
  };
  return nccl_communicator(options, invited->id);
}

}  // namespace foreshard::exec
