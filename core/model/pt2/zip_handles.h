// Handles of libzip that close themselves. Internal to this room.
#pragma once

#include <zip.h>

#include <memory>

namespace foreshard {

struct ZipCloser {
  void operator()(zip_t* zip) const { zip_discard(zip); }  // never writes back
};
struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Zip = std::unique_ptr<zip_t, ZipCloser>;
using ZipFile = std::unique_ptr<zip_file_t, ZipFileCloser>;

}  // namespace foreshard
