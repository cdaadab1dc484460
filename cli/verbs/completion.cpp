#include <fmt/format.h>

#include "cli/console/arguments.h"
#include "cli/console/json_text.h"
#include "cli/verbs/verbs.h"
#include "core/job/job_keys.h"
#include "core/text/format_append.h"

namespace foreshard::cli {
namespace {

std::string joined(const std::vector<std::string>& words, std::string_view between = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string verb_names(const std::vector<VerbDescription>& verbs) {
  std::vector<std::string> names;
  for (const VerbDescription& verb : verbs) names.push_back(verb.name);
  return joined(names);
}

// What may follow --set: every key of a job file.
std::string keys_with_equals() {
  std::string text;
  for (const JobKey& key : job_keys()) text += (text.empty() ? "" : " ") + key.name + "=";
  return text;
}

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bash(const std::vector<VerbDescription>& verbs) {
  std::string out =
      "# bash completion of foreshard; source it, or place it in bash-completion's folder\n_foreshard() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\" verb=\"${COMP_WORDS[1]}\"\n"
      "  COMPREPLY=()\n";
  format_append(out, "  if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W {} -- \"$word\")); return; fi\n",
                shell_quoted(verb_names(verbs)));
  out += "  case \"$verb $before\" in\n";
  for (const VerbDescription& verb : verbs) {
    for (const FlagDescription& flag : verb.flags) {
      for (const std::string& name : flag.names) {
        if (name == "--set")
          format_append(out,
                        "    \"{} --set\") compopt -o nospace; COMPREPLY=($(compgen -W {} -- \"$word\")); return;;\n",
                        verb.name, shell_quoted(keys_with_equals()));
        if (!flag.values.empty())
          format_append(out, "    \"{} {}\") COMPREPLY=($(compgen -W {} -- \"$word\")); return;;\n", verb.name, name,
                        shell_quoted(joined(flag.values)));
      }
    }
  }
  out += "  esac\n  case \"$verb\" in\n";
  for (const VerbDescription& verb : verbs) {
    std::vector<std::string> words = verb.words;
    for (const FlagDescription& flag : verb.flags) words.insert(words.end(), flag.names.begin(), flag.names.end());
    format_append(out, "    {}) COMPREPLY=($(compgen {}-W {} -- \"$word\"));;\n", verb.name,
                  verb.takes_file ? "-f " : "", shell_quoted(joined(words)));
  }
  return out + "  esac\n}\ncomplete -o filenames -F _foreshard foreshard\n";
}

// In zsh's _arguments a colon ends a part, a bracket the description.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh(const std::vector<VerbDescription>& verbs) {
  std::string out = "#compdef foreshard\n_foreshard() {\n  local -a verbs=(\n";
  for (const VerbDescription& verb : verbs)
    format_append(out, "    {}\n", shell_quoted(zsh_text(verb.name) + ":" + verb.about));
  out += "  )\n  if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n  case $words[2] in\n";
  for (const VerbDescription& verb : verbs) {
    format_append(out, "    {})\n      shift words; (( CURRENT-- ))\n      _arguments", verb.name);
    for (const FlagDescription& flag : verb.flags) {
      for (const std::string& name : flag.names) {
        std::string spec = fmt::format("{}{}[{}]", name == "--set" ? "*" : "", name, zsh_text(flag.about));
        if (flag.takes_value)
          spec += fmt::format(":value:{}", flag.takes_file       ? "_files"
                                           : name == "--set"     ? "(" + keys_with_equals() + ")"
                                           : flag.values.empty() ? ""
                                                                 : "(" + joined(flag.values) + ")");
        format_append(out, " \\\n        {}", shell_quoted(spec));
      }
    }
    if (!verb.words.empty())
      format_append(out, " \\\n        {}", shell_quoted(fmt::format("1:word:({})", joined(verb.words))));
    if (verb.takes_file) out += " \\\n        '*:file:_files'";
    out += ";;\n";
  }
  return out + "  esac\n}\ncompdef _foreshard foreshard\n";
}

std::string fish_text(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string fish(const std::vector<VerbDescription>& verbs) {
  std::string out = "# fish completion of foreshard\ncomplete -c foreshard -f\n";
  for (const VerbDescription& verb : verbs) {
    format_append(out, "complete -c foreshard -n __fish_use_subcommand -a {} -d {}\n", verb.name,
                  fish_text(verb.about));
  }
  for (const VerbDescription& verb : verbs) {
    const std::string when = fmt::format("-n '__fish_seen_subcommand_from {}'", verb.name);
    if (verb.takes_file) format_append(out, "complete -c foreshard {} -F\n", when);
    if (!verb.words.empty())
      format_append(out, "complete -c foreshard {} -a {}\n", when, fish_text(joined(verb.words)));
    for (const FlagDescription& flag : verb.flags) {
      std::string names;
      for (const std::string& name : flag.names)
        names += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
      const std::string values = flag.names.back() == "--set" ? keys_with_equals() : joined(flag.values);
      format_append(out, "complete -c foreshard {}{}{}{} -d {}\n", when, names,
                    flag.takes_value ? (flag.takes_file ? " -r -F" : " -x") : "",
                    values.empty() ? "" : " -a " + fish_text(values), fish_text(flag.about));
    }
  }
  return out;
}

}  // namespace

ExitCode run_verb(const CompletionFlags& flags, const Console& console) {
  const auto verbs = describe_verbs();
  const std::string script = flags.shell == "bash" ? bash(verbs) : flags.shell == "zsh" ? zsh(verbs) : fish(verbs);
  if (!console.json) return console.result(script) ? ExitCode::Ok : ExitCode::RunFailed;
  JsonText out;
  out.begin_object()
      .field("schema", "foreshard.completion/1")
      .field("shell", flags.shell)
      .field("script", script)
      .end_object();
  return console.result(out.take()) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
