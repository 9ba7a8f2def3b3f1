/* What a decoding step does beside its matrix products. WIDTH: numbers of a head; GROUP: query heads of a KV head. */

#include <omp.h>

#include "numbers.h"

#define PARTS (WIDTH / 16)

/* What of a head is multiplied at once, and a sum to which the products of two of them are added. */
#if BFLOAT16 && __AVX512BF16__ && WIDTH % 32 == 0
#define PAIRED 1  /* the processor multiplies pairs of bfloat16, and adds both products to a float */
#define SPAN 32
typedef __m512bh span;
static inline span take(const number *from) { return (span)_mm512_loadu_si512(from); }
static inline lanes add(lanes sum, span x, span y) { return (lanes)_mm512_dpbf16_ps((__m512)sum, x, y); }
#else
#define PAIRED 0
#define SPAN 16
typedef lanes span;
static inline span take(const number *from) { return load(from); }
static inline lanes add(lanes sum, span x, span y) { return sum + x * y; }
#endif
#define SPANS (WIDTH / SPAN)

/* Ask for a position of a head ahead of its use: heads are short stretches far apart, which the processor does not
   foresee, and there is time for them while others are computed with. A little at a time: compilers would gather what is
   asked for at the beginning of a loop, where it has to queue, and keep reads and requests in order only if told to. */
static inline void fetch(const number *from)
{
    for (int64_t i = 0; i < WIDTH; i += 64 / sizeof(number)) __builtin_prefetch(from + i);
    __asm__ volatile("" ::: "memory");
}

/* Rotary positions: x cos + (x_2, x_1) sin, halves swapped; the sine's first half is negative. */
static inline void rotate(const number *restrict x, const number *restrict cosine, const number *restrict sine,
                          number *restrict turned)
{
#if WIDTH % 32 == 0
    for (int d = 0; d < WIDTH; d += 16) {
        int other = d < WIDTH / 2 ? d + WIDTH / 2 : d - WIDTH / 2;
        store(turned + d, load(x + d) * load(cosine + d) + load(x + other) * load(sine + d));
    }
#else
    for (int d = 0; d < WIDTH; d++) {
        int other = d < WIDTH / 2 ? d + WIDTH / 2 : d - WIDTH / 2;
        turned[d] = narrow(wide(x[d]) * wide(cosine[d]) + wide(x[other]) * wide(sine[d]));
    }
#endif
}

/* Sixteen numbers for each query of a KV head. */
struct each {
    lanes of[GROUP];
};

/* The products of one key with each query, to be summed over the lanes. */
static inline __attribute__((always_inline)) struct each products(const span query[GROUP][SPANS], const number *key)
{
    struct each made = {{{0}}};
    for (int i = 0; i < SPANS; i++)
        for (int g = 0; g < GROUP; g++) made.of[g] = add(made.of[g], query[g][i], take(key + SPAN * i));
    return made;
}

/* Sums over lanes, a stage of four: x and y become half their lanes, those with bit `half` y's. */
static inline __attribute__((always_inline)) struct each join(const int half, struct each x, struct each y)
{
#define EACH(lane) lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7), lane(8), lane(9), lane(10), \
                   lane(11), lane(12), lane(13), lane(14), lane(15)
#define KEPT(lane) (lane) + ((lane) & half ? 16 : 0)
#define CROSSED(lane) ((lane) ^ half) + ((lane) & half ? 16 : 0)
    const words kept = {EACH(KEPT)}, crossed = {EACH(CROSSED)};
    for (int g = 0; g < GROUP; g++)
        x.of[g] = __builtin_shuffle(x.of[g], y.of[g], kept) + __builtin_shuffle(x.of[g], y.of[g], crossed);
    return x;
}

/* Keys in a row, of which those behind `last` are that once more, and as many that are wanted later. */
struct keys {
    const number *here, *ahead;
    int64_t last;
};

static inline __attribute__((always_inline)) struct each one(const span query[GROUP][SPANS], const struct keys *keys,
                                                             const int t)
{
    int64_t at = (t < keys->last ? t : keys->last) * WIDTH;
    fetch(keys->ahead + at);
    return products(query, keys->here + at);
}

/* Scores of sixteen keys. Two are summed as soon as both are there: the processor has registers for what is under way,
   not for sixteen of each. */
#define STAGE(name, part, half)                                                                                \
    static inline __attribute__((always_inline)) struct each name(const span query[GROUP][SPANS],              \
                                                                  const struct keys *keys, const int t)        \
    {                                                                                                          \
        struct each x = part(query, keys, t), y = part(query, keys, t + half);                                 \
        return join(half, x, y);                                                                               \
    }
STAGE(two, one, 1)
STAGE(four, two, 2)
STAGE(eight, four, 4)
STAGE(sixteen, eight, 8)

/* Of each query with n keys; scores of a query are `stride` apart from those of the next. Writes up to 15 too many. */
static inline void scores_of(const span query[GROUP][SPANS], const number *keys, int64_t n, float scaling,
                             float *scores, int64_t stride, const number *ahead)
{
    for (int64_t begin = 0; begin < n; begin += 16) {
        struct keys whole = {keys + begin * WIDTH, ahead + begin * WIDTH, 15}, rest = whole;
        rest.last = n - begin - 1;
        struct each found = rest.last < 15 ? sixteen(query, &rest, 0) : sixteen(query, &whole, 0);
        for (int g = 0; g < GROUP; g++) {
            lanes scaled = found.of[g] * scaling;
            memcpy(scores + g * stride + begin, &scaled, sizeof scaled);
        }
    }
}

/* What values are weighted with: numbers as the processor multiplies them. */
#if PAIRED
typedef number weight;
static inline void keep(weight *to, lanes values) { store(to, values); }
#else
typedef float weight;
static inline void keep(weight *to, lanes values) { memcpy(to, &values, sizeof values); }
#endif

/* Scores to weights e^(score - largest), which take their place; returns their sum. Up to 15 more are written. */
static inline float soften(float *scores, int64_t n)
{
    lanes tops, sums = {0};
    for (int i = 0; i < 16; i++) tops[i] = -INFINITY;
    for (int64_t t = n; t % 16; t++) scores[t] = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += 16)
#pragma omp simd
        for (int i = 0; i < 16; i++) tops[i] = scores[begin + i] > tops[i] ? scores[begin + i] : tops[i];
    float top = -INFINITY;
    for (int i = 0; i < 16; i++) top = tops[i] > top ? tops[i] : top;
    for (int64_t begin = 0; begin < n; begin += 16) {
        lanes powers;
        memcpy(&powers, scores + begin, sizeof powers);
        powers = exponentials(powers - top);
        sums += powers;
        keep((weight *)scores + begin, powers);  /* never ahead of what is still to be read */
    }
    return total(sums);
}

/* Two values of each number in turn, or one and nothing (`bytes` 2), weighted. */
#if PAIRED
static inline __attribute__((always_inline)) void mix_two(lanes mixed[GROUP][PARTS], const number *values,
                                                          const weight *weights, int64_t stride, const int bytes)
{
    span pair[GROUP];
    for (int g = 0; g < GROUP; g++) {
        int32_t both = 0;
        memcpy(&both, weights + g * stride, bytes);
        pair[g] = (span)_mm512_set1_epi32(both);
    }
    for (int i = 0; i < SPANS; i++) {
        __m512i one = (__m512i)take(values + SPAN * i);
        __m512i other = bytes > 2 ? (__m512i)take(values + WIDTH + SPAN * i) : _mm512_setzero_si512();
        span low = (span)_mm512_unpacklo_epi16(one, other), high = (span)_mm512_unpackhi_epi16(one, other);
        for (int g = 0; g < GROUP; g++) {
            mixed[g][2 * i] = add(mixed[g][2 * i], pair[g], low);
            mixed[g][2 * i + 1] = add(mixed[g][2 * i + 1], pair[g], high);
        }
    }
}
#endif

/* Add n values, weighted for each query: to lane l of mixed[g][i] number l of part i, or where values go in pairs its
   number in the order that `ordered` undoes. Fetches as many positions of `ahead`. */
static inline void mix(lanes mixed[GROUP][PARTS], const number *values, int64_t n, const weight *weights,
                       int64_t stride, const number *ahead)
{
#if PAIRED
    int64_t even = n - n % 2;
    for (int64_t t = 0; t < even; t += 2) {
        fetch(ahead + t * WIDTH);
        fetch(ahead + (t + 1) * WIDTH);
        mix_two(mixed, values + t * WIDTH, weights + t, stride, 4);
    }
    if (even < n) mix_two(mixed, values + even * WIDTH, weights + even, stride, 2);
#else
    for (int64_t t = 0; t < n; t++) {
        fetch(ahead + t * WIDTH);
        for (int i = 0; i < PARTS; i++) {
            lanes value = load(values + t * WIDTH + 16 * i);
            for (int g = 0; g < GROUP; g++) mixed[g][i] += weights[g * stride + t] * value;
        }
    }
#endif
}

static inline lanes ordered(const lanes mixed[PARTS], int i)
{
#if PAIRED
    const words first = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, second = first + 8;
    return __builtin_shuffle(mixed[i & ~1], mixed[i | 1], i % 2 ? second : first);
#else
    return mixed[i];
#endif
}

/* Who attends to what, in a step of n rows of one new position each.

   Row r has slot r of the cache. At `positions` it sees positions from its first to its own; those below `shared` it
   reads from the slot `source`, whose are the same. Rows of one source follow each other in `order`, so that what they
   share is read from memory once. scratch: threads x GROUP x stride, the longest row and 16 more. */
struct rows {
    const int64_t *order, *positions, *source, *shared;
    float *scratch;
    int64_t n, kv_heads, capacity, stride;
    float scaling;
};

/* By all threads of a parallel region together: rotate, store and attend.

   qkv (n, (GROUP + 2) kv_heads, WIDTH): queries, keys, values. cosine, sine (n, WIDTH). first (n,): the first position
   that each row sees. keys, values (slots, kv_heads, capacity, WIDTH): the cache. mixed (n, GROUP kv_heads, WIDTH). */
static void attend_rows(const struct rows *rows, const number *restrict qkv, const number *restrict cosine,
                        const number *restrict sine, const int64_t *restrict first, number *restrict keys,
                        number *restrict values, number *restrict mixed)
{
    const int64_t *order = rows->order, *source = rows->source, *shared = rows->shared;
    int64_t n = rows->n, kv_heads = rows->kv_heads, stride = rows->stride, place_of_head = rows->capacity * WIDTH;
    int64_t heads = GROUP * kv_heads, units = n * kv_heads, slot = kv_heads * place_of_head;
    float *scores = rows->scratch + omp_get_thread_num() * GROUP * stride, scaling = rows->scaling;
    const weight *weights = (weight *)scores;
    int64_t apart = stride * sizeof *scores / sizeof *weights;
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < units; unit++) {
        int64_t row = order[unit % n], head = unit / n, place = head * place_of_head;
        const number *mine = qkv + row * (heads + 2 * kv_heads) * WIDTH;
        const number *cos = cosine + row * WIDTH, *sin = sine + row * WIDTH;
        number *own_keys = keys + row * slot + place, *own_values = values + row * slot + place;
        const number *their_keys = keys + source[row] * slot + place;
        const number *their_values = values + source[row] * slot + place;
        int64_t position = rows->positions[row], start = first[row], length = position + 1 - start;
        int64_t theirs = shared[row] > start ? shared[row] - start : 0, own = start + theirs;

        int64_t then = unit + 1 < units ? unit + 1 : unit, next = order[then % n];
        int64_t begin = first[next], begin_own = shared[next] > begin ? shared[next] : begin;
        const number *next_keys = keys + then / n * place_of_head, *next_values = values + then / n * place_of_head;
        int64_t there = source[next] * slot + begin * WIDTH, there_own = next * slot + begin_own * WIDTH;

        span query[GROUP][SPANS];
        for (int g = 0; g < GROUP; g++) {
            number turned[WIDTH];
            rotate(mine + (head * GROUP + g) * WIDTH, cos, sin, turned);
            for (int i = 0; i < SPANS; i++) query[g][i] = take(turned + SPAN * i);
        }
        rotate(mine + (heads + head) * WIDTH, cos, sin, own_keys + position * WIDTH);
        memcpy(own_values + position * WIDTH, mine + (heads + kv_heads + head) * WIDTH, WIDTH * sizeof(number));

        scores_of(query, their_keys + start * WIDTH, theirs, scaling, scores, stride, next_keys + there);
        scores_of(query, own_keys + own * WIDTH, length - theirs, scaling, scores + theirs, stride, next_keys + there_own);
        float share[GROUP];
        lanes sum[GROUP][PARTS] = {{{0}}};
        for (int g = 0; g < GROUP; g++) share[g] = 1 / soften(scores + g * stride, length);
        mix(sum, their_values + start * WIDTH, theirs, weights, apart, next_values + there);
        mix(sum, own_values + own * WIDTH, length - theirs, weights + theirs, apart, next_values + there_own);
        for (int g = 0; g < GROUP; g++)
            for (int i = 0; i < PARTS; i++)
                store(mixed + (row * heads + head * GROUP + g) * WIDTH + 16 * i, ordered(sum[g], i) * share[g]);
    }
}

/* here / sqrt(mean(here^2) + eps) * weight. */
static inline void normalise_row(const number *here, const number *restrict weight, number *there, int64_t size,
                                 float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += wide(here[i]) * wide(here[i]);
    float scale = 1.0f / sqrtf(squares / size + eps);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) there[i] = narrow(wide(here[i]) * scale * wide(weight[i]));
}

/* By all threads together: x + y, and its normalisation x / sqrt(mean(x^2) + eps) * weight, for rows of `size`;
   without y (NULL) that of x, which may be `normal`. */
static void normalise_rows(number *x, const number *y, const number *restrict weight, number *normal, int64_t rows,
                           int64_t size, float eps)
{
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        number *here = x + row * size;
        if (y)
#pragma omp simd
            for (int64_t i = 0; i < size; i++) here[i] = narrow(wide(here[i]) + wide(y[row * size + i]));
        normalise_row(here, weight, normal + row * size, size, eps);
    }
}

/* silu(x) = x / (1 + e^-x), by e^-|x|, which does not overflow. */
static inline lanes silu(lanes x)
{
    lanes power = exponentials((lanes)((words)x | 0x80000000)), above;
#pragma omp simd
    for (int i = 0; i < 16; i++) above[i] = x[i] < 0 ? power[i] : 1.0f;
    return x * above * reciprocal(1.0f + power);
}

/* By all threads together: silu(gate) * up, for rows of gate and up side by side, each of `size`. */
static void gate_rows(const number *restrict gate_up, number *restrict gated, int64_t rows, int64_t size)
{
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *gates = gate_up + 2 * row * size, *ups = gates + size;
        number *to = gated + row * size;
        int64_t i = 0;
        for (; i + 16 <= size; i += 16) store(to + i, silu(load(gates + i)) * load(ups + i));
        for (; i < size; i++) to[i] = narrow(silu(wide(gates[i]) + (lanes){0})[0] * wide(ups[i]));
    }
}

void attend(const struct rows *rows, const number *qkv, const number *cosine, const number *sine, const int64_t *first,
            number *keys, number *values, number *mixed, int threads)
{
#pragma omp parallel num_threads(threads)
    attend_rows(rows, qkv, cosine, sine, first, keys, values, mixed);
}

void normalise(number *x, const number *y, const number *weight, number *normal, int64_t rows, int64_t size, float eps)
{
#pragma omp parallel if (rows * size > 8192)
    normalise_rows(x, y, weight, normal, rows, size, eps);
}

void gate(const number *gate_up, number *gated, int64_t rows, int64_t size)
{
#pragma omp parallel if (rows * size > 8192)
    gate_rows(gate_up, gated, rows, size);
}
