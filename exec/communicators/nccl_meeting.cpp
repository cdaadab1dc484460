#include "exec/communicators/nccl_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

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
               .message = "it is not connected: " + message,
               .place = fmt::format("the group \"{}\" of ranks {}", group.name, fmt::join(group.ranks, ", ")),
               .expected = fmt::format("all its ranks within {} s",
                                       std::chrono::duration_cast<std::chrono::seconds>(group.timeout).count()),
               .hint = std::move(hint)};
}

/// A rank that waits leaves a question in the launch's store; its peers leave there how many calls they have made.
class GroupProgress {
 public:
  GroupProgress(Rendezvous& rendezvous, const NcclGroup& group)
      : rendezvous_(rendezvous),
        ranks_(group.ranks),
        key_(fmt::format("nccl/{}/{}/", group.name, fmt::join(group.ranks, ","))) {}

  void answer(std::int64_t calls) {
    if (calls == told_) return;
    try {
      if (!asked_ && !rendezvous_.look(key_ + "asked")) return;
      asked_ = true;
      const std::string text = std::to_string(calls);
      rendezvous_.set(key_ + std::to_string(rendezvous_.rank()), {text.begin(), text.end()});
      told_ = calls;
    } catch (const std::exception&) {  // a store that is gone: nobody reads the answer
    }
  }

  std::string missing_at(std::int64_t call) {
    std::vector<std::string> missing;
    try {
      if (!std::exchange(asked_, true)) {
        rendezvous_.set(key_ + "asked", {1});
        return {};
      }
      for (const int rank : ranks_) {
        if (rank == rendezvous_.rank()) continue;
        const auto content = rendezvous_.look(key_ + std::to_string(rank));
        if (!content) {
          missing.push_back(fmt::format("no word of rank {}", rank));
        } else if (const std::int64_t made = std::stoll(std::string(content->begin(), content->end())); made < call) {
          missing.push_back(fmt::format("rank {} has made {} of {} calls", rank, made, call));
        }
        if (missing.size() == kNamed) break;
      }
    } catch (const std::exception&) {
      return "the launch's store does not answer";
    }
    return missing.empty() ? "the other ranks have made it: this rank, or what is between them, stands"
                           : fmt::format("{}", fmt::join(missing, ", "));
  }

 private:
  static constexpr std::size_t kNamed = 8;
  Rendezvous& rendezvous_;
  std::vector<int> ranks_;
  std::string key_;
  bool asked_ = false;
  std::int64_t told_ = -1;
};

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
                      .register_buffers = group.register_buffers,
                      .max_ctas = group.max_ctas};
  options.peers.failure = [&rendezvous] {
    return rendezvous.reported_failure(std::chrono::milliseconds::zero()).value_or("");
  };
  const auto progress = std::make_shared<GroupProgress>(rendezvous, group);
  options.peers.answer = [progress](std::int64_t calls) { progress->answer(calls); };
  options.peers.missing_at = [progress](std::int64_t call) { return progress->missing_at(call); };
  return nccl_communicator(options, invited->id);
}

}  // namespace foreshard::exec
