// Where what is wrong with a job that is planned was written. Pure functions; usable from any thread.
#pragma once

#include "core/job/job_file.h"
#include "core/result.h"

namespace foreshard {

/// An error of a job that is planned, which names a key or a module alone, with where the key's value came from: the
/// file and its line, or --set.
Error located(Error error, const LoadedJob& loaded);

}  // namespace foreshard
