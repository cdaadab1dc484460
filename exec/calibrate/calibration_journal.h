// What a calibration has measured so far, in a file beside its profile: one that was interrupted goes on from there.
//
// A line of JSON for each list of numbers (times in nanoseconds), written out when it is measured; the first line says
// what was measured on what. A journal of another model, job or machine, or one that was damaged, is begun anew; a last
// line that was cut off is left out.
//
// Lists that were there at the start are read from any thread; keep() is called by one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/result.h"

namespace foreshard::exec {

class CalibrationJournal {
 public:
  /// Errors: a file that cannot be written.
  static Result<CalibrationJournal> open(const std::string& path, const std::string& key);

  /// Of the interrupted calibration; null: to be measured.
  const std::vector<std::int64_t>* find(const std::string& name) const;
  std::size_t size() const { return kept_.size(); }

  /// What cannot be written is only not kept.
  void keep(const std::string& name, const std::vector<std::int64_t>& numbers) const;
  /// The calibration is done.
  void remove() const;

 private:
  CalibrationJournal(std::string path, std::map<std::string, std::vector<std::int64_t>> kept)
      : path_(std::move(path)), kept_(std::move(kept)) {}

  std::string path_;
  std::map<std::string, std::vector<std::int64_t>> kept_;
};

}  // namespace foreshard::exec
