#ifndef QGEMM_TESTS_FAKES_COLLECTING_STREAM_H_
#define QGEMM_TESTS_FAKES_COLLECTING_STREAM_H_

#include "server/tune_stream.h"

namespace qgemm {

// Keeps the last result and the summary of a tuning; nobody cancels it.
class CollectingStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& event) override {
    if (event.has_result()) result = event.result();
    if (event.has_summary()) summary = event.summary();
  }
  bool Cancelled() override { return false; }

  v1::TuneResult result;
  v1::TuneSummary summary;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_COLLECTING_STREAM_H_
