// Wrap policies (rules W1..W6): which modules become FSDP units, in the order in which PyTorch would build them.
//
// Pure functions of a module tree. Function policies (size, always, lambda, class, or) are asked twice per module by a
// post-order walk that sees a module once per parent; policy objects (module class, custom) choose modules first and
// are applied to every object once. Nothing here knows groups, layouts or runtimes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/model/model.h"
#include "core/model/module_kind.h"
#include "core/plan/units/module_tree.h"
#include "core/result.h"

namespace foreshard {

/// W2. Enough elements, not of a force-leaf class to be entered, not of an excluded class to be wrapped.
struct SizePolicy {
  Numel min_num_params = 100'000'000;
  std::vector<std::string> force_leaf = unsplit_class_names();
  std::vector<std::string> exclude = container_class_names();
};
struct AlwaysPolicy {};
struct LambdaPolicy {
  std::function<bool(const ModuleInfo&)> wraps;
};
/// The function form of the class policy ("transformer"): always enter, wrap instances.
struct ClassFunctionPolicy {
  std::vector<std::string> classes;
};
struct FunctionPolicy;
struct OrPolicy {
  std::vector<FunctionPolicy> any_of;
};
struct FunctionPolicy {
  std::variant<SizePolicy, AlwaysPolicy, LambdaPolicy, ClassFunctionPolicy, OrPolicy> value;
};

/// W4: the policy object of a set of classes.
struct ModuleWrapPolicy {
  std::vector<std::string> classes;
};

/// What a custom policy's function returned. Overrides are opaque here: option name -> value as written.
struct CustomAnswer {
  enum class Kind : std::uint8_t { No, Yes, Overrides, Invalid } kind = Kind::No;
  std::map<std::string, std::string> overrides;
  std::string text;  // Invalid: the value as Python prints it
};
struct CustomPolicy {
  std::function<CustomAnswer(const ModuleInfo&)> choose;
};

using WrapPolicy = std::variant<FunctionPolicy, ModuleWrapPolicy, CustomPolicy>;

struct WrapRequest {
  const Model& model;
  const ModuleTree& tree;
  std::vector<bool> ignored_modules;  // by object id; empty = none
  std::vector<bool> ignored_params;   // by the ParamId that owns the storage; empty = none
  std::vector<bool> already_units;    // by object id: modules that are units before the policy runs (W5); empty = none
  bool mixed_precision = false;       // W6 applies
};

struct WrappedModule {
  ModuleId module;  // object id
  std::map<std::string, std::string> overrides;
  bool full_precision = false;  // W6: mixed precision is switched off for this unit
  bool operator==(const WrappedModule&) const = default;
};

struct WrapResult {
  std::vector<WrappedModule> wrapped;  // build order; a module may occur twice under a function policy (W1)
  std::vector<std::string> warnings;
};

/// Errors: a unit in the tree already (W5), a custom answer that is no bool and no overrides (W4), a module reached by
/// a second registration after something inside it was wrapped (the walk of W1 refuses wrapped modules).
Result<WrapResult> apply_wrap_policy(const WrapPolicy& policy, const WrapRequest& request);

/// N1: nothing that is ignored may be a unit already.
Result<void> check_ignored_modules(const WrapRequest& request);

/// W3: the context in which hand-written model code calls wrap(). Outside it wrap() leaves a module as it is.
class WrapContext {
 public:
  /// Error: contexts do not nest.
  Result<void> enter();
  void leave() { inside_ = false; }
  bool wraps() const { return inside_; }

 private:
  bool inside_ = false;
};

/// Number of distinct parameter elements below `module` that are not ignored: the N of W1.
Numel distinct_numel(const WrapRequest& request, ModuleId module);

}  // namespace foreshard
