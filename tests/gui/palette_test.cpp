// Colours of slices stay apart for eyes that see fewer of them: distance in CIE Lab under simulated deficiencies.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "gui/models/timeline/meaning.h"

namespace foreshard::gui {
namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

struct Sight {
  const char* name;
  Matrix seen;  // of linear RGB: Machado, Oliveira, Fernandes (2009), severity 1
};
const std::array<Sight, 4> kSights{{
    {"normal", {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}},
    {"protanopia",
     {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}}},
    {"deuteranopia",
     {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}}},
    {"tritanopia",
     {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}},
}};
const Matrix kToXyz{{{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}};

Vector times(const Matrix& m, const Vector& v) {
  Vector out{};
  for (std::size_t i = 0; i < 3; ++i) out[i] = m[i][0] * v[0] + m[i][1] * v[1] + m[i][2] * v[2];
  return out;
}

Vector linear(Rgb color) {
  Vector out{};
  for (int i = 0; i < 3; ++i) {
    const double c = ((color >> (16 - 8 * i)) & 0xffU) / 255.0;
    out[static_cast<std::size_t>(i)] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return out;
}

Vector lab(const Vector& rgb) {
  Vector clipped = rgb;
  for (double& c : clipped) c = std::fmin(1.0, std::fmax(0.0, c));
  Vector xyz = times(kToXyz, clipped);
  xyz[0] /= 0.9505;
  xyz[2] /= 1.089;
  for (double& x : xyz) x = x > 0.008856 ? std::cbrt(x) : 7.787 * x + 16.0 / 116.0;
  return {116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])};
}

double distance(const Sight& sight, Rgb a, Rgb b) {
  const Vector x = lab(times(sight.seen, linear(a))), y = lab(times(sight.seen, linear(b)));
  return std::hypot(x[0] - y[0], x[1] - y[1], x[2] - y[2]);
}

TEST(Palette, MeaningsStayApartForColourBlindEyes) {
  for (const Theme theme : {Theme::Light, Theme::Dark}) {
    const Palette& palette = palette_of(theme);
    for (const Sight& sight : kSights) {
      for (std::size_t a = 0; a < kMeanings; ++a) {
        for (std::size_t b = a + 1; b < kMeanings; ++b) {
          EXPECT_GT(distance(sight, palette.slices[a], palette.slices[b]), 8.0)
              << sight.name << ", " << (theme == Theme::Light ? "light" : "dark") << ": "
              << meaning_name(static_cast<Meaning>(a)) << " and " << meaning_name(static_cast<Meaning>(b));
        }
      }
    }
  }
}

double contrast(Rgb a, Rgb b) {
  const auto light = [](Rgb color) {
    const Vector rgb = linear(color);
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2] + 0.05;
  };
  return std::fmax(light(a), light(b)) / std::fmin(light(a), light(b));
}

TEST(Palette, InkIsReadOnEverySlicePlainAndHatched) {
  for (const Theme theme : {Theme::Light, Theme::Dark}) {
    const Palette& palette = palette_of(theme);
    for (std::size_t m = 0; m < kMeanings; ++m) {
      for (const double hatched : {0.0, 0.1}) {
        const Rgb ground = blend(palette.slices[m], palette.ground, hatched);
        const Rgb ink = ink_on(ground), other = ink == 0xffffff ? 0x10151b : 0xffffff;
        EXPECT_GE(contrast(ground, ink), 4.0) << meaning_name(static_cast<Meaning>(m)) << " " << hatched;
        EXPECT_GE(contrast(ground, ink), contrast(ground, other)) << meaning_name(static_cast<Meaning>(m));
      }
    }
  }
}

}  // namespace
}  // namespace foreshard::gui
