// What a calibration has measured so far, in a file beside its profile: one that was interrupted goes on from there.
//
// A line of JSON for each list of numbers (times in nanoseconds), written out when it is measured; the first line says
// what was measured on what. A journal of another model, job or machine, or one that was damaged, is begun anew; a last
// line that was cut off is left out. A list that finds no room (a full disk) leaves the file as it was and is told
// once; the calibration goes on without.
//
// Lists that were there at the start are read from any thread; keep() is called by one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/result.h"

namespace foreshard::exec {

class CalibrationJournal {
 public:
  /// Of the first list that could not be kept; nothing is kept after it. Called by whoever calls keep().
  using Failed = std::function<void(const Error&)>;

  /// Errors: a file that cannot be written.
  static Result<CalibrationJournal> open(const std::string& path, const std::string& key, Failed failed = {});

  /// Of the interrupted calibration; null: to be measured.
  const std::vector<std::int64_t>* find(const std::string& name) const;
  std::size_t size() const { return kept_.size(); }

  /// On the disk when it returns.
  void keep(const std::string& name, const std::vector<std::int64_t>& numbers) const;
  /// The calibration is done.
  void remove() const;

 private:
  CalibrationJournal(std::string path, std::map<std::string, std::vector<std::int64_t>> kept, Failed failed)
      : path_(std::move(path)), kept_(std::move(kept)), failed_(std::move(failed)) {}

  std::string path_;
  std::map<std::string, std::vector<std::int64_t>> kept_;
  Failed failed_;
  mutable bool full_ = false;
};

}  // namespace foreshard::exec
