/* Reductions. Floats are computed in double precision and rounded to their type after every
 * step, which gives the same as computing in the type, as double has more than twice the digits
 * of every smaller one. */
#include <math.h>

#include "internal.h"

/* The ranks' order of reduction changes from chunk to chunk, as it does in NCCL's rings. */
#define CHUNK 16

struct format {
    int exponent_bits, mantissa_bits;
    /* Has no infinities, so that the largest exponent counts numbers too. */
    bool finite;
    /* Rounds to the largest finite number what is beyond it, infinities too. */
    bool saturates;
};

static const struct format formats[ncclNumTypes] = {
    [ncclFloat16] = {5, 10, false, false},
    [ncclBfloat16] = {8, 7, false, false},
    [ncclFloat8e4m3] = {4, 3, true, true},
    [ncclFloat8e5m2] = {5, 2, false, true},
};

size_t type_size(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

bool is_float(ncclDataType_t type) {
    return type >= ncclFloat16;
}

static bool is_signed(ncclDataType_t type) {
    return type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
}

static double decode(unsigned bits, const struct format *format) {
    unsigned mantissa_range = 1u << format->mantissa_bits;
    unsigned mantissa = bits & (mantissa_range - 1);
    int largest = (1 << format->exponent_bits) - 1;
    int exponent = (int)(bits >> format->mantissa_bits) & largest;
    int bias = largest / 2;
    double magnitude;
    if (exponent == largest && (!format->finite || mantissa == mantissa_range - 1))
        magnitude = format->finite || mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, 1 - bias - format->mantissa_bits);
    else
        magnitude = ldexp(mantissa_range + mantissa, exponent - bias - format->mantissa_bits);
    return bits >> (format->exponent_bits + format->mantissa_bits) != 0 ? -magnitude : magnitude;
}

static unsigned encode(double value, const struct format *format) {
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    unsigned sign_bit = 1u << (format->exponent_bits + format->mantissa_bits);
    unsigned infinity = sign_bit - (1u << format->mantissa_bits);
    unsigned largest = format->finite ? sign_bit - 2 : infinity - 1;
    if (isnan(value))
        return format->finite ? sign_bit - 1 : infinity | 1u << (format->mantissa_bits - 1);
    double magnitude = fabs(value);
    unsigned bits = largest + 1;
    if (magnitude < ldexp(1, bias + 2)) {
        int exponent;
        frexp(magnitude, &exponent);
        /* The exponent with its bias; zero and subnormal numbers have that of the smallest
         * normal ones. */
        int biased = magnitude == 0 || exponent - 1 + bias < 1 ? 1 : exponent - 1 + bias;
        double units = nearbyint(ldexp(magnitude, bias + format->mantissa_bits - biased));
        bits = (unsigned)units + ((unsigned)(biased - 1) << format->mantissa_bits);
    }
    if (bits > largest)
        bits = format->saturates ? largest : infinity;
    return signbit(value) ? bits | sign_bit : bits;
}

double load_float(ncclDataType_t type, const void *from, size_t i) {
    switch (type) {
    case ncclFloat32:
        return ((const float *)from)[i];
    case ncclFloat64:
        return ((const double *)from)[i];
    default:
        return decode(type_size(type) == 2 ? ((const uint16_t *)from)[i] : ((const uint8_t *)from)[i], &formats[type]);
    }
}

static void store_float(ncclDataType_t type, void *to, size_t i, double value) {
    if (type == ncclFloat32)
        ((float *)to)[i] = (float)value;
    else if (type == ncclFloat64)
        ((double *)to)[i] = value;
    else if (type_size(type) == 2)
        ((uint16_t *)to)[i] = (uint16_t)encode(value, &formats[type]);
    else
        ((uint8_t *)to)[i] = (uint8_t)encode(value, &formats[type]);
}

static double round_to(ncclDataType_t type, double value) {
    uint64_t room;
    store_float(type, &room, 0, value);
    return load_float(type, &room, 0);
}

static double combine_floats(ncclRedOp_t reduction, double a, double b) {
    switch (reduction) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return isnan(a) || b > a ? b : a;
    case ncclMin:
        return isnan(a) || b < a ? b : a;
    default:
        return a + b;
    }
}

/* Integers travel as 64 bits, extended by their sign if they have one. */
static uint64_t load_integer(ncclDataType_t type, const void *from, size_t i) {
    switch (type) {
    case ncclInt8:
        return (uint64_t)((const int8_t *)from)[i];
    case ncclUint8:
        return ((const uint8_t *)from)[i];
    case ncclInt32:
        return (uint64_t)((const int32_t *)from)[i];
    case ncclUint32:
        return ((const uint32_t *)from)[i];
    default:
        return ((const uint64_t *)from)[i];
    }
}

static void store_integer(ncclDataType_t type, void *to, size_t i, uint64_t value) {
    if (type_size(type) == 1)
        ((uint8_t *)to)[i] = (uint8_t)value;
    else if (type_size(type) == 4)
        ((uint32_t *)to)[i] = (uint32_t)value;
    else
        ((uint64_t *)to)[i] = value;
}

static uint64_t combine_integers(ncclDataType_t type, ncclRedOp_t reduction, uint64_t a, uint64_t b) {
    bool less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (reduction) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return less ? b : a;
    case ncclMin:
        return less ? a : b;
    default:
        return a + b;
    }
}

static void reduce_floats(void *to, const void *const *from, int ranks, size_t i, const struct call *call) {
    ncclDataType_t type = call->type;
    ncclRedOp_t reduction = call->reduction;
    double scale = reduction == ncclAvg ? round_to(type, 1.0 / ranks) : call->scale;
    double sum = 0;
    for (int k = 0; k < ranks; k++) {
        double value = load_float(type, from[(i / CHUNK + (size_t)k) % (size_t)ranks], i);
        if (scale != 0)
            value = round_to(type, value * scale);
        sum = k == 0 ? value : round_to(type, combine_floats(reduction, sum, value));
    }
    store_float(type, to, i, sum);
}

static void reduce_integers(
    void *to, const void *const *from, int ranks, size_t i, ncclDataType_t type, ncclRedOp_t reduction) {
    uint64_t sum = load_integer(type, from[0], i);
    for (int k = 1; k < ranks; k++)
        sum = combine_integers(type, reduction, sum, load_integer(type, from[k], i));
    if (reduction == ncclAvg) {
        store_integer(type, &sum, 0, sum);
        sum = load_integer(type, &sum, 0);
        sum = is_signed(type) ? (uint64_t)((int64_t)sum / ranks) : sum / (uint64_t)ranks;
    }
    store_integer(type, to, i, sum);
}

void reduce(void *to, const void *const *from, int ranks, size_t count, const struct call *call) {
    ncclDataType_t type = call->type;
    if (ranks == 1 && call->scale == 0) {
        memcpy(to, from[0], count * type_size(type));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_float(type))
            reduce_floats(to, from, ranks, i, call);
        else
            reduce_integers(to, from, ranks, i, type, call->reduction);
    }
}
