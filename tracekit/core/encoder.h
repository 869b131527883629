/* Lines of events from records; see encoder.c. */

#ifndef TRACEKIT_ENCODER_H
#define TRACEKIT_ENCODER_H

#include "records.h"

extern PyType_Spec encoder_spec;

#endif
