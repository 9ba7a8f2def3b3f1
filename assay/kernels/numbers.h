/* Numbers as they are stored, and as they are computed with: always float. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#if __AVX512F__
#include <immintrin.h>
#endif

/* Sixteen at once; compilers make of it what the processor has. */
typedef float lanes __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));

#if BFLOAT16
typedef uint16_t number;

static inline float wide(number x)
{
    union { uint32_t bits; float value; } word = {(uint32_t)x << 16};
    return word.value;
}

/* To the nearest, ties to even; NaN stays. */
static inline number narrow(float x)
{
    union { float value; uint32_t bits; } word = {x};
    uint32_t rounded = (word.bits + 0x7fff + ((word.bits >> 16) & 1)) >> 16;
    return (number)(x == x ? rounded : 0x7fc0);
}

static inline lanes load(const number *from)
{
#if __AVX512F__  /* GCC makes three instructions of what is one */
    __m256i read;
    memcpy(&read, from, sizeof read);
    return (lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(read), 16);
#else
    typedef uint16_t halves __attribute__((vector_size(32)));
    halves read;
    memcpy(&read, from, sizeof read);
    return (lanes)(__builtin_convertvector(read, words) << 16);
#endif
}

static inline void store(number *to, lanes values)
{
#if __AVX512BF16__
    __m256bh halves = _mm512_cvtneps_pbh((__m512)values);
#else
    typedef uint16_t packed __attribute__((vector_size(32)));
    words bits = (words)values, sound = (words)(values == values);
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    packed halves = __builtin_convertvector((rounded & sound) | (0x7fc0 & ~sound), packed);
#endif
    memcpy(to, &halves, sizeof halves);
}
#else
typedef float number;

static inline float wide(number x) { return x; }
static inline number narrow(float x) { return x; }

static inline lanes load(const number *from)
{
    lanes read;
    memcpy(&read, from, sizeof read);
    return read;
}

static inline void store(number *to, lanes values) { memcpy(to, &values, sizeof values); }
#endif

/* The Taylor series of e^r. */
#define SERIES(r)                                                                                                  \
    ((((((1.0f / 5040 * (r) + 1.0f / 720) * (r) + 1.0f / 120) * (r) + 1.0f / 24) * (r) + 1.0f / 6) * (r) + 0.5f) * (r) \
     * (r) + (r) + 1.0f)

/* e^x to a few units of the last place for x up to 88, and 0 below -87, where float's normal numbers end; NaN stays.

   x = k ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts so that k times the first is exact; e^r is its Taylor series.
   Written without branches, for compilers make one instruction of sixteen of them. */
static inline float exponential(float x)
{
    float bounded = x < -87.0f ? -87.0f : x;
    float k = rintf(bounded * 1.44269504f);
    float r = bounded - k * 0.693359375f + k * 2.12194440e-4f;
    float p = SERIES(r);
    union { uint32_t bits; float value; } power = {(uint32_t)((int32_t)(k > -126.0f ? k : -126.0f) + 127) << 23};
    return x < -87.0f ? 0.0f : p * power.value;
}

/* The same of sixteen. */
static inline lanes exponentials(lanes x)
{
    lanes powers;
#if __AVX512F__  /* which has an instruction for p 2^k, and leaves out lanes at no cost */
    __m512 k = _mm512_roundscale_ps((__m512)(x * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    lanes r = x - (lanes)k * 0.693359375f + (lanes)k * 2.12194440e-4f;
    lanes p = SERIES(r);
    __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    powers = (lanes)_mm512_maskz_scalef_ps(seen, (__m512)p, k);
#else
#pragma omp simd
    for (int i = 0; i < 16; i++) powers[i] = exponential(x[i]);
#endif
    return powers;
}

/* The sum of sixteen. */
static inline float total(lanes x)
{
    const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    x += __builtin_shuffle(x, lane ^ 8);
    x += __builtin_shuffle(x, lane ^ 4);
    x += __builtin_shuffle(x, lane ^ 2);
    return x[0] + x[1];
}

/* 1 / (1 + e^-x), by e^-|x|, which does not overflow. */
static inline float sigmoid(float x)
{
    float e = exponential(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* 1 / x, as near as `number` can say it. */
static inline lanes reciprocal(lanes x)
{
#if BFLOAT16 && __AVX512F__  /* a guess that is right to 14 bits, and one step of Newton's: a division takes far longer */
    lanes guess = (lanes)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}
