#include "traces/query/grouped_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

namespace foreshard {
namespace {

constexpr std::size_t kMostCells = 1U << 22U;  // groups times sums

struct Token {
  enum class Type { Word, Number, Text, Sign } type = Type::Sign;
  std::string text;  // words in lower case; texts without quotes
  std::size_t begin = 0, end = 0;
  bool is(std::string_view wanted) const { return type != Type::Text && text == wanted; }
};

/// Nothing of what this does not know: quoted names, comments, reals, parameters.
std::optional<std::vector<Token>> tokens_of(std::string_view sql) {
  std::vector<Token> tokens;
  const auto at = [&](std::size_t i) { return i < sql.size() ? sql[i] : '\0'; };
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t i = 0; i < sql.size();) {
    const char c = sql[i];
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
      continue;
    }
    Token token;
    token.begin = i;
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (std::isdigit(static_cast<unsigned char>(at(i))) != 0) ++i;
      if (at(i) == '.' || is_letter(at(i))) return std::nullopt;
      token.type = Token::Type::Number;
      token.text = sql.substr(token.begin, i - token.begin);
    } else if (is_letter(c)) {
      while (is_letter(at(i))) ++i;
      token.type = Token::Type::Word;
      for (std::size_t k = token.begin; k < i; ++k)
        token.text += static_cast<char>(std::tolower(static_cast<unsigned char>(sql[k])));
    } else if (c == '\'') {
      token.type = Token::Type::Text;
      for (++i; !(at(i) == '\'' && at(i + 1) != '\''); ++i) {
        if (i >= sql.size()) return std::nullopt;
        if (sql[i] == '\'') ++i;
        token.text += sql[i];
      }
      ++i;
    } else if (std::string_view("(),*=<>+-/%;|").find(c) != std::string_view::npos) {
      if (c == '-' && at(i + 1) == '-') return std::nullopt;
      if (c == '/' && at(i + 1) == '*') return std::nullopt;
      i += (c == '<' || c == '>') && (at(i + 1) == '=' || at(i + 1) == '>') ? 2 : c == '=' && at(i + 1) == '=' ? 2 : 1;
      token.text = sql.substr(token.begin, i - token.begin);
    } else {
      return std::nullopt;
    }
    token.end = i;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

struct Condition {
  const QueryColumn* column = nullptr;
  std::string op;
  std::int64_t number = 0;
  std::vector<bool> passes;  // of a column of texts, by code
};

struct Sum {
  std::string function;
  const QueryColumn* column = nullptr;  // null: count(*)
  std::string text;                     // "sum(duration_ns)", to find the same again
};

/// The one column of numbers that are few; a lane has one of them.
bool is_rank(const QueryColumn& column) { return column.name == "rank"; }

/// The column of spans whose codes are lanes.
const QueryColumn& stream_column() {
  const auto& columns = timeline_tables().front().columns;
  return *std::find_if(columns.begin(), columns.end(), [](const QueryColumn& c) { return c.name == "stream"; });
}

/// By lane + 1: the place of its rank among the ranks; 0 without a lane.
std::vector<std::uint32_t> rank_places(const Timeline& t) {
  std::vector<std::int32_t> ranks;
  for (const Lane& lane : t.lanes) ranks.push_back(lane.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<std::uint32_t> places{0};
  for (const Lane& lane : t.lanes)
    places.push_back(
        1 + static_cast<std::uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), lane.rank) - ranks.begin()));
  return places;
}

class Parser {
 public:
  Parser(const QueriedTimeline& of, std::string_view sql, std::vector<Token> tokens)
      : of_(of), sql_(sql), tokens_(std::move(tokens)) {}

  bool parse() {
    const auto count = [&](std::string_view word) {
      return std::count_if(tokens_.begin(), tokens_.end(), [&](const Token& t) { return t.is(word); });
    };
    for (const char* refused : {"distinct", "over", "filter", "join", "union", "with", "case", "collate", "exists",
                                "in", "grouped", "like", "glob", "id", "rowid", "oid", "_rowid_"})
      if (count(refused) > 0) return false;
    const auto is_own = [](const Token& t) { return t.type == Token::Type::Word && t.text.starts_with("sum_"); };
    if (std::any_of(tokens_.begin(), tokens_.end(), is_own)) return false;  // columns of the table of groups
    if (count("select") != 1 || count("from") != 1 || count("group") != 1) return false;
    if (tokens_.empty() || !tokens_.front().is("select")) return false;
    from_ = place_of("from");
    group_ = place_of("group");
    if (from_ + 1 >= tokens_.size() || !tokens_[from_ + 1].is("spans") || group_ < from_) return false;
    if (!take_groups()) return false;
    if (group_ != from_ + 2 && !take_conditions(from_ + 2, group_)) return false;
    return rewrite();
  }

  std::vector<const QueryColumn*> groups;
  std::vector<Condition> conditions;
  std::vector<Sum> sums;
  std::string question;

 private:
  std::size_t place_of(std::string_view word) const {
    return static_cast<std::size_t>(
        std::find_if(tokens_.begin(), tokens_.end(), [&](const Token& t) { return t.is(word); }) - tokens_.begin());
  }
  const QueryColumn* column_of(const Token& token) const {
    if (token.type != Token::Type::Word) return nullptr;
    for (const QueryColumn& column : timeline_tables().front().columns)
      if (column.name == token.text) return &column;
    return nullptr;
  }

  bool take_groups() {
    std::size_t at = group_ + 1;
    if (at >= tokens_.size() || !tokens_[at].is("by")) return false;
    for (++at; at < tokens_.size(); ++at) {
      const QueryColumn* column = column_of(tokens_[at]);
      if (column == nullptr || (column->code == nullptr && !is_rank(*column))) return false;
      groups.push_back(column);
      if (at + 1 >= tokens_.size() || !tokens_[at + 1].is(",")) break;
      ++at;
    }
    behind_ = at + 1;
    const bool ends = behind_ >= tokens_.size() || tokens_[behind_].is("having") || tokens_[behind_].is("order") ||
                      tokens_[behind_].is("limit") || tokens_[behind_].is(";");
    return ends && !groups.empty();
  }

  bool take_conditions(std::size_t begin, std::size_t end) {
    if (!tokens_[begin].is("where")) return false;
    for (std::size_t at = begin + 1; at < end; at += 4) {
      if (at + 2 >= end) return false;
      const QueryColumn* column = column_of(tokens_[at]);
      const Token &op = tokens_[at + 1], &value = tokens_[at + 2];
      if (column == nullptr || op.type != Token::Type::Sign) return false;
      Condition condition{column, op.text == "==" ? "=" : op.text, 0, {}};
      if (column->code != nullptr) {
        if (condition.op != "=" || value.type != Token::Type::Text) return false;
        condition.passes.resize(column->codes(of_));
        for (std::size_t c = 0; c < condition.passes.size(); ++c)
          condition.passes[c] = column->text(of_, c) == value.text;
      } else {
        const bool known = condition.op == "=" || condition.op == "<" || condition.op == ">" || condition.op == "<=" ||
                           condition.op == ">=";
        if (!known || value.type != Token::Type::Number || value.text.size() > 18) return false;
        std::from_chars(value.text.data(), value.text.data() + value.text.size(), condition.number);
      }
      conditions.push_back(std::move(condition));
      if (at + 3 < end && (!tokens_[at + 3].is("and") || at + 4 == end)) return false;
    }
    return true;
  }

  /// "f ( column )" or "count ( * )" at a place; the number of tokens, 0 = none.
  std::size_t sum_at(std::size_t at, Sum& sum) const {
    if (at + 3 >= tokens_.size() || !tokens_[at + 1].is("(") || !tokens_[at + 3].is(")")) return 0;
    sum.function = tokens_[at].text;
    sum.text = sum.function + "(" + tokens_[at + 2].text + ")";
    if (sum.function == "count" && tokens_[at + 2].is("*")) return 4;
    sum.column = column_of(tokens_[at + 2]);
    const bool known =
        sum.function == "count" || sum.function == "sum" || sum.function == "min" || sum.function == "max";
    return known && sum.column != nullptr && sum.column->type == "INTEGER" ? 4 : 0;
  }

  /// The tokens of a part with its sums replaced; false where a column stands bare that is no group's.
  bool rewritten(std::size_t begin, std::size_t end, std::string& out) {
    std::size_t copied = begin < tokens_.size() ? tokens_[begin].begin : sql_.size();
    for (std::size_t at = begin; at < end; ++at) {
      Sum sum;
      if (const std::size_t length = sum_at(at, sum); length > 0) {
        auto found = std::find_if(sums.begin(), sums.end(), [&](const Sum& s) { return s.text == sum.text; });
        if (found == sums.end()) found = sums.insert(sums.end(), sum);
        out += sql_.substr(copied, tokens_[at].begin - copied);
        out += fmt::format("+sum_{}", found - sums.begin());  // "+": an expression, compared as sums are
        at += length - 1;
        copied = tokens_[at].end;
        continue;
      }
      // A function of another kind may be an aggregate.
      if (tokens_[at].type == Token::Type::Word && at + 1 < end && tokens_[at + 1].is("(")) return false;
      const QueryColumn* column = column_of(tokens_[at]);
      if (column != nullptr && std::find(groups.begin(), groups.end(), column) == groups.end()) return false;
    }
    if (end > begin) out += sql_.substr(copied, tokens_[end - 1].end - copied);
    return true;
  }

  /// Items keep the names that SQLite gives them: their text, where there is no alias.
  bool rewrite() {
    question = "select ";
    std::size_t begin = 1;
    int depth = 0;
    for (std::size_t at = 1; at <= from_; ++at) {
      depth += tokens_[at].is("(") ? 1 : tokens_[at].is(")") ? -1 : 0;
      if (at < from_ && !(tokens_[at].is(",") && depth == 0)) continue;
      if (at == begin || (at == begin + 1 && tokens_[begin].is("*"))) return false;
      if (!rewritten(begin, at, question)) return false;
      const bool named = at >= begin + 3 && tokens_[at - 2].is("as");
      // A word behind an expression is a name as well.
      if (!named && at - begin >= 2 && tokens_[at - 1].type != Token::Type::Number && !tokens_[at - 1].is(")") &&
          tokens_[at - 2].type != Token::Type::Sign)
        return false;
      if (!named && at - begin > 1) {
        const std::string_view text = sql_.substr(tokens_[begin].begin, tokens_[at - 1].end - tokens_[begin].begin);
        if (text.find('"') != std::string_view::npos) return false;
        question += fmt::format(" as \"{}\"", text);
      }
      if (!named && at - begin == 1 && column_of(tokens_[begin]) == nullptr) return false;
      question += at < from_ ? ", " : " from grouped ";
      begin = at + 1;
    }
    std::size_t rest = behind_;
    if (rest < tokens_.size() && tokens_[rest].is("having")) {
      question += "where ";
      ++rest;
    }
    return rest >= tokens_.size() || rewritten(rest, tokens_.size(), question);
  }

  const QueriedTimeline& of_;
  std::string_view sql_;
  std::vector<Token> tokens_;
  std::size_t from_ = 0, group_ = 0, behind_ = 0;
};

struct Cell {
  std::int64_t sum = 0, count = 0, least = std::numeric_limits<std::int64_t>::max(),
               most = std::numeric_limits<std::int64_t>::min();
};

bool passes(const QueriedTimeline& of, const std::vector<Condition>& conditions, std::size_t row) {
  for (const Condition& condition : conditions) {
    if (condition.column->code != nullptr) {
      const std::int32_t code = condition.column->code(of, row);
      if (code < 0 || !condition.passes[static_cast<std::size_t>(code)]) return false;
      continue;
    }
    const QueryValue value = condition.column->value(of, row);
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr) return false;
    const std::int64_t wanted = condition.number;
    const bool passed = condition.op == "="    ? *number == wanted
                        : condition.op == "<"  ? *number < wanted
                        : condition.op == ">"  ? *number > wanted
                        : condition.op == "<=" ? *number <= wanted
                                               : *number >= wanted;
    if (!passed) return false;
  }
  return true;
}

QueryValue value_of(const Sum& sum, const Cell& cell) {
  if (sum.function == "count") return cell.count;
  if (cell.count == 0) return {};
  return sum.function == "sum" ? cell.sum : sum.function == "min" ? cell.least : cell.most;
}

}  // namespace

std::vector<std::uint32_t> text_places(const QueriedTimeline& of, const QueryColumn& column) {
  const std::size_t codes = column.codes(of);
  std::vector<std::uint32_t> order(codes), places(codes + 1, 0);
  for (std::size_t c = 0; c < codes; ++c) order[c] = static_cast<std::uint32_t>(c);
  const auto text = [&](std::uint32_t code) { return column.text(of, code); };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return text(a) < text(b); });
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < codes; ++i) {
    if (i == 0 || text(order[i]) != text(order[i - 1])) ++place;
    places[order[i] + 1] = place;
  }
  return places;
}

std::optional<GroupedQuestion> grouped_question(const QueriedTimeline& of, std::string_view sql) {
  auto tokens = tokens_of(sql);
  if (!tokens) return std::nullopt;
  Parser parsed(of, sql, std::move(*tokens));
  if (!parsed.parse()) return std::nullopt;
  std::vector<std::vector<std::uint32_t>> places;
  std::vector<std::size_t> sizes;
  std::vector<const QueryColumn*> codes;  // whose codes the places are of
  const std::size_t sums = parsed.sums.size(), rows = timeline_tables().front().rows(of);
  const std::size_t most = kMostCells / std::max<std::size_t>(1, sums);
  std::size_t groups = 1;
  for (const QueryColumn* column : parsed.groups) {
    places.push_back(is_rank(*column) ? rank_places(of.t) : text_places(of, *column));
    codes.push_back(is_rank(*column) ? &stream_column() : column);
    sizes.push_back(1 + *std::max_element(places.back().begin(), places.back().end()));
    if (groups > most / sizes.back()) return std::nullopt;
    groups *= sizes.back();
  }
  std::vector<Cell> cells(groups * std::max<std::size_t>(1, sums));
  std::vector<std::size_t> example(groups, rows);
  for (std::size_t row = 0; row < rows; ++row) {
    if (!passes(of, parsed.conditions, row)) continue;
    std::size_t group = 0;
    for (std::size_t g = 0; g < places.size(); ++g)
      group = group * sizes[g] + places[g][static_cast<std::size_t>(codes[g]->code(of, row) + 1)];
    if (example[group] == rows) example[group] = row;
    for (std::size_t s = 0; s < sums; ++s) {
      Cell& cell = cells[group * sums + s];
      const QueryColumn* column = parsed.sums[s].column;
      if (column == nullptr) {
        ++cell.count;
        continue;
      }
      const QueryValue value = column->value(of, row);
      const auto* number = std::get_if<std::int64_t>(&value);
      if (number == nullptr) continue;
      ++cell.count;
      if (__builtin_add_overflow(cell.sum, *number, &cell.sum)) return std::nullopt;  // SQLite says what that is
      cell.least = std::min(cell.least, *number);
      cell.most = std::max(cell.most, *number);
    }
  }
  GroupedQuestion question{parsed.question, {}, {}};
  for (const QueryColumn* column : parsed.groups) question.columns.emplace_back(column->name);
  for (std::size_t s = 0; s < sums; ++s) question.columns.push_back(fmt::format("sum_{}", s));
  for (std::size_t group = 0; group < groups; ++group) {
    if (example[group] == rows) continue;
    std::vector<QueryValue>& row = question.rows.emplace_back();
    for (const QueryColumn* column : parsed.groups) row.push_back(column->value(of, example[group]));
    for (std::size_t s = 0; s < sums; ++s) row.push_back(value_of(parsed.sums[s], cells[group * sums + s]));
  }
  return question;
}

}  // namespace foreshard
