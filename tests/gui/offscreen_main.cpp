// Tests of widgets have no screen and leave no settings behind.

#include <gtest/gtest.h>

#include <QApplication>
#include <QSettings>
#include <QStandardPaths>

int main(int argc, char** argv) {
  qputenv("QT_QPA_PLATFORM", "offscreen");
  QCoreApplication::setOrganizationName("foreshard-tests");
  QSettings::setPath(QSettings::NativeFormat, QSettings::UserScope, QString::fromStdString(::testing::TempDir()));
  ::testing::InitGoogleTest(&argc, argv);
  QApplication application(argc, argv);
  return RUN_ALL_TESTS();
}
