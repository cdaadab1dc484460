#include "core/cpu/cpu_product.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace foreshard {
namespace {

constexpr Bytes kBfloat16Bytes = 2, kFloat32Bytes = 4;
constexpr std::int64_t kColumns = 64;     // of the right matrix that are packed side by side
constexpr std::int64_t kPackedRows = 32;  // ... in groups of so many rows: a vector of bfloat16

bool is_power_of_2(std::int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

/// How a product is cut. Chunks are several blocks that a thread does in one go.
struct Blocking {
  std::int64_t m = 0, n = 0, k = 0;  // of one block
  std::int64_t m_chunk = 1, n_chunk = 1;
  std::int64_t k_batch = 1;  // blocks along k that one call sums up
  std::int64_t threads = 1, k_threads = 1;
  bool copies_left = false;
  bool sums = false;  // in float, beside the result
  bool k_tail_in_tiles = false;
  std::int64_t left_row = 0;  // elements between two rows of the left matrix, or of its copy
};

/// A copy's rows fill cache lines and do not all fall on the same ones.
std::int64_t copied_row(std::int64_t k) {
  constexpr std::int64_t kLine = 64 / kBfloat16Bytes;
  const std::int64_t row = round_up(k, kLine);
  return row >= 512 && is_power_of_2(row) ? row + kLine : row;
}

bool prefers_copy(const CpuProduct& p) {
  return !p.left_transposed && is_power_of_2(p.k) && p.k >= 8192 / kBfloat16Bytes && p.m >= 1024;
}

// ------------------------------------------------------------------------------------ vectors of bfloat16

/// Work that is left over when it is dealt out in portions, as a share of a portion.
float left_over(std::int64_t work, std::int64_t portion) {
  const std::int64_t over = work % portion;
  const std::int64_t lost = work < portion ? portion - over : std::min(portion - over, over);
  return static_cast<float>(lost) / static_cast<float>(portion);
}

float imbalance(const CpuProduct& p, const Blocking& b, std::int64_t threads) {
  const std::int64_t spatial = threads / b.k_threads;
  const std::int64_t n_blocks = ceil_div(p.n, b.n);
  const std::int64_t n_chunks = ceil_div(n_blocks, b.n_chunk);
  const float work = left_over(ceil_div(p.m, b.m) * ceil_div(p.n, b.n * b.n_chunk) * p.batch, spatial);
  const float rows = static_cast<float>(b.m * ceil_div(p.m, b.m) % p.m) / static_cast<float>(p.m);
  const float columns = (static_cast<float>(n_chunks) * static_cast<float>(b.n_chunk) - static_cast<float>(n_blocks)) /
                        static_cast<float>(n_blocks);
  const float depth = left_over(p.k, b.k_threads * b.k);
  const float idle = static_cast<float>(threads - spatial * b.k_threads) / static_cast<float>(threads);
  return (work + rows + columns + idle + depth) / 5;
}

/// The most even distribution over the threads. Always sums in float.
Blocking vector_blocking(const CpuProduct& p, std::int64_t threads) {
  Blocking first;
  first.threads = threads;
  first.copies_left = (p.left_transposed && p.m > 1) || prefers_copy(p);
  first.sums = true;
  first.n = std::min(kColumns, p.n);
  first.k = std::min<std::int64_t>(p.k, p.k > 1024 && !p.left_transposed ? 1024 : 512);
  const std::int64_t n_blocks = ceil_div(p.n, first.n);
  const bool little_work = threads > p.batch * n_blocks;
  const std::int64_t most_rows = std::min<std::int64_t>(256, p.m);
  const std::int64_t least_rows = std::min<std::int64_t>(little_work ? 16 : 32, p.m);
  const bool splits_k = little_work && p.batch == 1 && p.left_transposed && is_power_of_2(p.k) && p.k >= 2048;
  const std::int64_t most_k_threads = splits_k ? std::min<std::int64_t>(threads, 4) : 1;

  Blocking best = first;
  float least = 1.0F;
  const auto take = [&](const Blocking& candidate) {
    const float now = imbalance(p, candidate, threads);
    if (now >= least) return false;
    least = now;
    best = candidate;
    return true;
  };
  for (std::int64_t k_threads = most_k_threads; k_threads >= 1; --k_threads) {
    Blocking b = first;
    b.k_threads = k_threads;
    const std::int64_t spatial = threads / k_threads;
    bool found = false;
    for (b.n_chunk = std::min<std::int64_t>(first.copies_left ? 16 : 1, n_blocks); b.n_chunk >= 1; --b.n_chunk) {
      for (b.m = most_rows; b.m >= least_rows; --b.m) {
        const std::int64_t work = p.batch * ceil_div(p.m, b.m) * ceil_div(p.n, b.n * b.n_chunk);
        if (most_k_threads == 1 && work < spatial * 3 && work % spatial != 0) continue;
        found = take(b) || found;
      }
    }
    if (found) continue;
    b.m = least_rows;
    b.n_chunk = 1;
    take(b);
  }
  if (best.m == 0) best.m = least_rows;
  best.left_row = copied_row(best.k);
  return best;
}

// ------------------------------------------------------------------------------------ tiles

/// Weighs how much of a second cache a chunk fills, how often what is copied is used again, and how even the threads'
/// work is.
class TileBlocking {
 public:
  TileBlocking(const CpuProduct& product, std::int64_t threads, Bytes l2_bytes)
      : p_(product), threads_(threads), cache_(l2_bytes * 3 / 4) {
    copies_ = (p_.left_transposed && p_.m > 1) || prefers_copy(p_);
    now_.copies_left = copies_;
    now_.n = std::min(kColumns, p_.n);
  }

  Blocking best() {
    const std::int64_t rows = preferred_rows();
    const std::int64_t n = now_.n;
    const std::int64_t deep = ceil_div(p_.k, 1024);
    const std::int64_t most_k_threads =
        p_.batch == 1 ? std::min(std::clamp<std::int64_t>(threads_ / 8, 1, 7), deep) : 1;
    Blocking best;
    float most = 0.0F;
    for (std::int64_t k_threads = 1; k_threads <= most_k_threads; ++k_threads) {
      const std::int64_t spatial = threads_ / k_threads;
      const std::int64_t m_blocks = ceil_div(p_.m, rows), n_blocks = ceil_div(p_.n, n);
      const std::int64_t work = p_.batch * m_blocks * n_blocks * std::min(deep, k_threads);
      const bool little = static_cast<float>(work) < 1.5F * static_cast<float>(threads_);
      const std::int64_t least_rows = little && rows > 32 ? ceil_div(rows, 2) : rows;
      const std::int64_t most_n = std::min<std::int64_t>(work > 16 * threads_ ? 6 : 4, n_blocks);
      bool found = false;
      for (const std::int64_t m : row_candidates(rows, least_rows)) {
        for (std::int64_t n_chunk = most_n; n_chunk >= 1; --n_chunk) {
          for (std::int64_t m_chunk = std::min<std::int64_t>(4, m_blocks); m_chunk >= 1; --m_chunk) {
            const float score = try_blocks(k_threads, n_chunk, m, m_chunk);
            const std::int64_t pieces = p_.batch * ceil_div(p_.m, m * m_chunk) * ceil_div(p_.n, n * n_chunk);
            if (most_k_threads == 1 && pieces < spatial * 3 && pieces % spatial != 0) continue;
            if (score <= most) continue;
            most = score;
            best = now_;
            found = true;
          }
        }
      }
      if (found) continue;
      const float score = try_blocks(k_threads, 1, least_rows, 1);
      if (score > most) {
        most = score;
        best = now_;
      }
    }
    return best;
  }

 private:
  static constexpr std::int64_t kGranularity = 2;  // rows of the right matrix that are packed together

  /// A tile has at most 16 rows; at least 13 of them should be filled.
  std::int64_t preferred_rows() const {
    for (std::int64_t rows = 16; rows >= 13; --rows)
      for (std::int64_t tiles = 4; tiles >= 2; --tiles)
        if (p_.m % (rows * tiles) == 0) return rows * tiles;
    return std::min<std::int64_t>(p_.m, 64);
  }

  /// In the order of a std::unordered_set that they were put into: of equal scores the first is taken.
  std::vector<std::int64_t> row_candidates(std::int64_t rows, std::int64_t least) const {
    std::vector<std::int64_t> put;
    const auto add = [&put](std::int64_t m) {
      if (std::find(put.begin(), put.end(), m) == put.end()) put.push_back(m);
    };
    for (std::int64_t m = rows; m >= least; m = m > 1 ? ceil_div(m, 2) : 0) {
      add(m);
      if (m == 1) break;
    }
    if (p_.m > 16)
      for (std::int64_t m = std::min<std::int64_t>(p_.m / 16 * 16, 64); m >= round_up(least, 16); m -= 16) add(m);
    std::reverse(put.begin(), put.end());
    return put;
  }

  std::int64_t m_elements() const { return now_.m * now_.m_chunk; }
  std::int64_t n_elements() const { return now_.n * now_.n_chunk; }
  std::int64_t k_elements() const { return now_.k * now_.k_batch; }

  /// Bytes that a chunk goes through; settles what depends on the blocks along k.
  Bytes chunk_bytes() {
    const std::int64_t k = k_elements();
    now_.left_row = now_.copies_left ? copied_row(now_.k) : (p_.left_transposed ? p_.m : p_.k);
    now_.sums = p_.k > k || p_.k % now_.k > 0;
    Bytes bytes = kBfloat16Bytes * (k * m_elements() + k * n_elements() + now_.n * k + m_elements() * n_elements());
    if (now_.copies_left) bytes += kBfloat16Bytes * now_.left_row * now_.k_batch * m_elements();
    if (now_.sums) bytes += kFloat32Bytes * m_elements() * n_elements();
    return bytes;
  }

  /// So many blocks along k that a chunk fits into the cache.
  void fit_into_cache(std::int64_t k_blocks) {
    const Bytes chunk = chunk_bytes();
    const std::int64_t least = chunk / cache_, most = ceil_div(chunk, cache_);
    const bool long_rows = !p_.left_transposed && is_power_of_2(p_.k) && p_.k >= 8192 / kBfloat16Bytes;
    if (least <= (long_rows ? 2 : 0) || now_.k_batch <= 1) return;
    const std::int64_t one = std::max<std::int64_t>(now_.k_batch / least, 1), two = ceil_div(now_.k_batch, most);
    const std::int64_t over_one = k_blocks % one, over_two = k_blocks % two;
    now_.k_batch = !(over_one == 0 || over_two < over_one) || over_two == 0 ? two : one;
  }

  void join_blocks() {
    const std::int64_t depth = k_elements(), tail = p_.k % now_.k;
    now_.k_tail_in_tiles = p_.k % kPackedRows != 0 && depth > kPackedRows && !copies_ && now_.left_row == p_.k;
    if (now_.k_tail_in_tiles) {
      now_.k = std::min(depth, p_.k);
      now_.k_batch = 1;
    } else if (tail == 0 && p_.k % depth == 0) {
      now_.k = depth;
      now_.k_batch = 1;
    } else if (now_.k_threads == 1 && p_.k == depth + tail) {
      now_.k = depth;
      now_.k_batch = 2;
    }
  }

  float try_blocks(std::int64_t k_threads, std::int64_t n_chunk, std::int64_t m, std::int64_t m_chunk) {
    now_.k_threads = k_threads;
    now_.threads = threads_ / k_threads * k_threads;
    now_.n_chunk = n_chunk;
    now_.m = m;
    now_.m_chunk = m_chunk;
    if (p_.k < kPackedRows) {
      now_.k = round_up(p_.k, kGranularity);
      now_.k_batch = 1;
    } else {
      now_.k = std::min(round_up(ceil_div(p_.k, k_threads), kGranularity), kPackedRows);
      now_.k_batch = ceil_div(ceil_div(p_.k, now_.k), k_threads);
      fit_into_cache(now_.k_batch);
      join_blocks();
    }
    now_.copies_left = copies_ || (!now_.k_tail_in_tiles && p_.k % kGranularity != 0);
    return score(chunk_bytes());
  }

  float score(Bytes chunk) const {
    const auto cache = static_cast<float>(cache_), filled = static_cast<float>(chunk);
    const float use = 1.0F - std::fabs(cache - filled) / std::max(cache, filled);
    const std::int64_t wanted_m = std::min<std::int64_t>(p_.m, 256);
    const std::int64_t wanted_n = std::min<std::int64_t>(p_.n, now_.copies_left ? 256 : 64);
    const float again =
        0.5F * (std::min(share(m_elements(), wanted_m), 1.0F) + std::min(share(n_elements(), wanted_n), 1.0F));
    const auto many = static_cast<float>(std::min<std::int64_t>(threads_, 100));
    const float even = (many - 1.0F) / many, cached = 1.0F / many;
    const float sum = cached * use + again + (even > 0.0F ? even * evenness() : 0.0F);
    return sum / (1.0F + even + cached);
  }

  static float share(std::int64_t part, std::int64_t whole) {
    return static_cast<float>(part) / static_cast<float>(whole);
  }

  float evenness() const {
    const std::int64_t spatial = threads_ / now_.k_threads;
    const std::int64_t pieces = p_.batch * ceil_div(p_.m, m_elements()) * ceil_div(p_.n, n_elements());
    const float space = static_cast<float>(p_.batch) * share(p_.m, m_elements()) * share(p_.n, n_elements()) /
                        static_cast<float>(round_up(pieces, spatial)) * static_cast<float>(spatial);
    float depth = 1.0F;
    if (now_.k_threads > 1)
      depth = 0.8F * share(p_.k, k_elements()) /
              static_cast<float>(round_up(ceil_div(p_.k, k_elements()), now_.k_threads)) *
              static_cast<float>(now_.k_threads);
    return space * depth / static_cast<float>(threads_);
  }

  CpuProduct p_;
  std::int64_t threads_;
  Bytes cache_;
  bool copies_ = false;
  Blocking now_;  // what one trial leaves behind is where the next begins, as in oneDNN
};

// ------------------------------------------------------------------------------------ bytes

/// Each buffer of a scratchpad is booked_if_any with room to align it.
Bytes booked_if_any(Bytes bytes) { return bytes > 0 ? bytes + 128 : 0; }

/// Elements that a general product sums up beside its result: each thread its rows of a matrix, in one matrix at a
/// time.
std::int64_t sums_in_float(const CpuProduct& p, std::int64_t threads) {
  const auto of_one = [&p](std::int64_t many) {
    const std::int64_t share = ceil_div(p.batch * p.m * p.n, many);
    return round_up(share >= p.n ? std::min(p.m * p.n, share / p.n * p.n) : share, 64);
  };
  return std::max(of_one(1), threads * of_one(threads));
}

/// Into tiles of 8 to 16 rows.
bool cut_evenly(std::int64_t rows) {
  for (std::int64_t tile = 8; tile <= 16; ++tile)
    if (rows % tile == 0) return true;
  return false;
}

Bytes scratchpad(const CpuProduct& p, const Blocking& b, bool tiles) {
  constexpr Bytes kCall = Bytes{16} * 40;  // what names the blocks of a call, 16 times over
  const Bytes right = kBfloat16Bytes * round_up(b.n, kColumns) * round_up(b.k, kPackedRows) * b.k_batch;
  Bytes bytes = booked_if_any(b.threads * kCall * b.k_batch) + booked_if_any(b.threads * right);
  if (b.copies_left) bytes += booked_if_any(b.threads * kBfloat16Bytes * b.m * b.left_row * b.k_batch * b.m_chunk);
  if (b.sums) {
    const bool whole = b.k_threads > 1;  // threads sum up the same rows: each has all of them
    const std::int64_t row = whole ? p.n : tiles ? round_up(b.n, std::min<std::int64_t>(32, b.n)) : b.n;
    const std::int64_t chunks = whole || b.k * b.k_batch >= p.k ? 1 : b.m_chunk * b.n_chunk;
    bytes += booked_if_any(b.threads * kFloat32Bytes * row * (whole ? p.m : b.m) * chunks);
  }
  if (tiles) {
    constexpr Bytes kTile = 1024;
    // Of sums, at a time: two by two, or as many in a row; three where 33 to 48 rows cannot be cut evenly.
    const std::int64_t rows = ceil_div(b.m, 16), columns_left = p.n % b.n;
    const bool in_a_row = rows == 3 && !cut_evenly(b.m) && (columns_left <= 16 || columns_left % 16 == 0);
    const std::int64_t used = in_a_row ? 3 : std::min<std::int64_t>(4, rows * ceil_div(b.n, 16));
    bytes += booked_if_any(b.threads * kTile * (used + (b.k_tail_in_tiles ? 1 : 0)));
  }
  return bytes;
}

}  // namespace

Bytes cpu_product_bytes(const CpuProduct& product, CpuIsa isa, std::int64_t threads, Bytes l2_bytes) {
  constexpr std::int64_t kLeast = std::int64_t{16} * 16 * 16;  // ATen/native/mkldnn/Matmul.cpp
  if (isa == CpuIsa::Avx2 || product.batch * product.m * product.n * product.k <= kLeast) return 0;
  if (isa == CpuIsa::Avx512) return booked_if_any(kFloat32Bytes * sums_in_float(product, threads));
  if (isa == CpuIsa::Amx) {
    constexpr Bytes kSmall = 126;  // vectors are faster
    const Blocking tiles = TileBlocking(product, threads, l2_bytes).best();
    if (kBfloat16Bytes * tiles.m * tiles.left_row > kSmall) return scratchpad(product, tiles, true);
  }
  return scratchpad(product, vector_blocking(product, threads), false);
}

}  // namespace foreshard
