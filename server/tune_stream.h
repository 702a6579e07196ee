#ifndef QGEMM_SERVER_TUNE_STREAM_H_
#define QGEMM_SERVER_TUNE_STREAM_H_

#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// Where a Tune request's events go. Used by the requesting thread only.
class TuneStream {
 public:
  virtual ~TuneStream() = default;
  virtual void Send(const v1::TuneEvent& event) = 0;
  // The client is gone or cancelled; asked every 50 ms at least.
  virtual bool Cancelled() = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNE_STREAM_H_
