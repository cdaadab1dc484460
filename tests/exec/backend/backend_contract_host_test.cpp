#include "exec/host/host_backend.h"
#include "tests/exec/backend/backend_contract.h"

namespace foreshard::exec {
namespace {

struct Host {
  static constexpr bool kWorkRunsOnStreams = true;
  static bool streams_wait_for_host_code() { return true; }
  static std::unique_ptr<Backend> make() { return make_host_backend(); }
  static void run(Backend& backend, const Issue& issue, Work work) { backend.launch(issue, std::move(work)); }
  static void write(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t value) {
    backend.launch(issue, [=] { *static_cast<std::int64_t*>(buffer.data()) = value; });
  }
  static void read(Backend& backend, const Issue& issue, Buffer buffer, std::int64_t* to) {
    backend.launch(issue, [=] { *to = *static_cast<const std::int64_t*>(buffer.data()); });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Host, BackendContract, Host);

}  // namespace
}  // namespace foreshard::exec
