/* Matrix products in bfloat16, sums in float, with weights arranged in panels of COLUMNS outputs.

   A panel holds pairs of inputs, one after the other: for each its COLUMNS outputs side by side, as the processor's
   instruction takes them (it multiplies pairs, and adds both products). A tile of ROWS x COLUMNS sums stays in registers
   while its panel goes by, and all rows follow one another over a panel, which meanwhile lies in the core's own cache.
   The next panel is fetched from memory during that: there is time for it, but not when its turn has come. */

#include <omp.h>

#include "numbers.h"

#if !__AVX512BF16__
#error no products in bfloat16 on this processor
#endif

#define ROWS 8
#define LANES 16
#define VECTORS 3
#define COLUMNS (VECTORS * LANES)
#define LINE 32    /* numbers that come from memory at once */
#define TRAVEL 5   /* pairs between two requests for some of the next panel */
#define CACHED (1 << 19)  /* numbers that a core's cache surely does not hold */
#define LINES (TRAVEL * 2 * COLUMNS / LINE)

/* One pair of each row, or one number behind which nothing comes (`bytes` 2), with the panel's weights of it. */
static inline __attribute__((always_inline)) void accumulate(__m512 sums[ROWS][VECTORS], const int rows,
                                                             const number *x, int64_t depth, const int bytes, const number *panel)
{
    __m512bh weight[VECTORS];
    for (int c = 0; c < VECTORS; c++) weight[c] = (__m512bh)_mm512_loadu_si512(panel + 2 * LANES * c);
    for (int r = 0; r < rows; r++) {
        int32_t pair = 0;
        memcpy(&pair, x + r * depth, bytes);
        for (int c = 0; c < VECTORS; c++)
            sums[r][c] = _mm512_dpbf16_ps(sums[r][c], (__m512bh)_mm512_set1_epi32(pair), weight[c]);
    }
}

/* x (rows, depth) with one panel: `columns` of out (rows, width), which lies in memory (`far`), or in the cache. Asks
   for `lines` of `next` with each TRAVEL pairs. */
static inline __attribute__((always_inline)) void tile(const int rows, const number *restrict x, int64_t depth,
                                                       const number *restrict panel, const number *restrict bias,
                                                       number *restrict out, int far, int64_t width,
                                                       int64_t columns, const number *next, int64_t lines)
{
    for (int r = 0; far && r < rows; r++)
        for (int64_t i = 0; i < columns; i += LINE) __builtin_prefetch(out + r * width + i, 1);
    __m512 sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < VECTORS; c++) sums[r][c] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < depth / 2; begin += TRAVEL) {
        int64_t end = begin + TRAVEL < depth / 2 ? begin + TRAVEL : depth / 2;
        for (int64_t i = 0; i < lines; i++, next += LINE) __builtin_prefetch(next);
        for (int64_t k = begin; k < end; k++) accumulate(sums, rows, x + 2 * k, depth, 4, panel + 2 * COLUMNS * k);
    }
    if (depth % 2) accumulate(sums, rows, x + depth - 1, depth, 2, panel + COLUMNS * (depth - 1));
    for (int c = 0; c < VECTORS && c * LANES < columns; c++) {
        int64_t left = columns - c * LANES;
        __mmask16 there = left < LANES ? (1u << left) - 1 : 0xffff;
        __m512 more = _mm512_setzero_ps();
        if (bias) {
            __m256i read = _mm256_maskz_loadu_epi16(there, bias + c * LANES);
            more = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(read), 16);
        }
        for (int r = 0; r < rows; r++) {
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(sums[r][c], more));
            _mm256_mask_storeu_epi16(out + r * width + c * LANES, there, rounded);
        }
    }
}

/* A weight (width, depth) as `arrange` has it, and its bias (width,) or NULL. */
struct map {
    const number *panels, *bias;
    int64_t depth, width;
};

static inline int64_t panels_of(const struct map *map) { return (map->width + COLUMNS - 1) / COLUMNS; }
static inline int64_t size_of(const struct map *map) { return (map->depth + map->depth % 2) * COLUMNS; }

/* By all threads of a parallel region together: out (rows, width) of x (rows, depth). `then`, unless NULL, is the map
   that comes after, of which each thread fetches its first panel during its last one here. */
static void multiply(const struct map *map, const number *x, number *out, int64_t rows, const struct map *then)
{
    int64_t threads = omp_get_num_threads(), me = omp_get_thread_num(), panels = panels_of(map), size = size_of(map);
    int64_t depth = map->depth, width = map->width, blocks = (rows + ROWS - 1) / ROWS;
    int64_t lines = (LINES + blocks - 1) / blocks, travels = (depth / 2 + TRAVEL - 1) / TRAVEL * lines * LINE;
    /* few panels to a core: cut the rows as well */
    int64_t cuts = panels >= 4 * threads ? 1 : (4 * threads + panels - 1) / panels;
    if (cuts > blocks) cuts = blocks;
    int64_t end = panels * cuts * (me + 1) / threads;
    int far = rows * width > CACHED;
    const number *following = then ? then->panels + panels_of(then) * me / threads * size_of(then) : NULL;
    for (int64_t unit = panels * cuts * me / threads; unit < end; unit++) {
        int64_t at = unit / cuts, cut = unit % cuts, columns = width - at * COLUMNS;
        const number *panel = map->panels + at * size, *bias = map->bias ? map->bias + at * COLUMNS : NULL;
        const number *after = unit + 1 == end && following ? following : panel + size;
        if (columns > COLUMNS) columns = COLUMNS;
        for (int64_t b = blocks * cut / cuts; b < blocks * (cut + 1) / cuts; b++) {
            const number *here = x + b * ROWS * depth, *next = after + b * travels;
            number *to = out + b * ROWS * width + at * COLUMNS;
#define TILE(rows) tile(rows, here, depth, panel, bias, to, far, width, columns, next, lines)
            switch (rows - b * ROWS) {
            case 1: TILE(1); break;
            case 2: TILE(2); break;
            case 3: TILE(3); break;
            case 4: TILE(4); break;
            case 5: TILE(5); break;
            case 6: TILE(6); break;
            case 7: TILE(7); break;
            default: TILE(ROWS);
            }
        }
    }
#pragma omp barrier
}

void product(const struct map *map, const number *x, number *out, int64_t rows, int threads)
{
#pragma omp parallel num_threads(threads)
    multiply(map, x, out, rows, NULL);
}

/* A weight (width, depth) in panels: (panels, pairs, COLUMNS, 2), zeros behind the last output and input. */
void arrange(const number *restrict weight, number *restrict arranged, int64_t depth, int64_t width, int threads)
{
    int64_t panels = (width + COLUMNS - 1) / COLUMNS, even = depth + depth % 2;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < panels; at++) {
        number *panel = arranged + at * even * COLUMNS;
        for (int64_t column = 0; column < COLUMNS; column++) {
            const number *from = weight + (at * COLUMNS + column) * depth;
            int there = at * COLUMNS + column < width;
            for (int64_t k = 0; k < even; k += 2) {
                panel[COLUMNS * k + 2 * column] = there ? from[k] : 0;
                panel[COLUMNS * k + 2 * column + 1] = there && k + 1 < depth ? from[k + 1] : 0;
            }
        }
    }
}
