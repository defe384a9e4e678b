/* The macros that define kernels. At run time the library appends to this the lines of list.h that it needs, as compiling
 * one takes a fraction of a second, and all of them many. */
#ifndef DCL_KERNELS_H
#define DCL_KERNELS_H

#include "cast.h"
#include "reduce.h"
#include "transpose.h"

#endif
