// The rules of a diagnosis: one function a group of causes that look at the same thing. Private to traces/diagnosis.
#pragma once

#include <vector>

#include "traces/diagnosis/diagnosis.h"
#include "traces/diagnosis/recording_facts.h"

namespace foreshard {

/// Adds what it finds; says in `not_looked_at` what the recording lacks.
using DiagnosisRule = void (*)(const RecordingFacts& facts, Diagnosis& diagnosis);

void find_host_causes(const RecordingFacts& facts, Diagnosis& diagnosis);       // host_rules.cpp
void find_gather_causes(const RecordingFacts& facts, Diagnosis& diagnosis);     // gather_rules.cpp
void find_device_causes(const RecordingFacts& facts, Diagnosis& diagnosis);     // device_rules.cpp
void find_precision_causes(const RecordingFacts& facts, Diagnosis& diagnosis);  // precision_rules.cpp
void find_rank_causes(const RecordingFacts& facts, Diagnosis& diagnosis);       // rank_rules.cpp
void find_memory_causes(const RecordingFacts& facts, Diagnosis& diagnosis);     // memory_rules.cpp

}  // namespace foreshard
