/* Attention of packed trees and its gradients, as assay/policy/forest.py says. WIDTH: numbers of a head; GROUP: query
   heads of a KV head. All is computed in float, and what it is computed from is read once.

   N tokens stand in order: the stem, which all of them see, then spans. A tree has a prompt (a span) and answers
   (spans); an answer's token sees the stem, its prompt and its own span up to itself; a prompt's the stem and its own.
   So the keys of a span are its *context*, the stem and perhaps a prompt, and its own.

   parts (n_parts, 4): begin and end of a tree's prompt, first and last + 1 of its answers' spans, some or all of them:
   a tree may be several parts, one after the other, so that there are enough for all threads. spans (n_spans, 2): begin
   and end. Where there is a stem, it is the prompt of the first part, which has no answers. */

#include <omp.h>
#include <stdlib.h>

#include "numbers.h"

#define PARTS (WIDTH / 16)
#define TOKENS 32               /* that ask together */
#define ROWS (TOKENS * GROUP)   /* queries of them */

/* What a call is about. query, mixed and their gradients: (N, heads, WIDTH), of kv_heads keys and values: (N, kv_heads,
   WIDTH). cosine, sine (N, WIDTH) turn queries and keys where they are not NULL. normaliser (N, heads): log of the sum
   of e^score. */
typedef struct {
    const number *query, *key, *value, *mixed_in, *grad;
    const float *cosine, *sine;
    number *mixed, *query_grad, *key_grad, *value_grad;
    float *normaliser;
    const int64_t *parts, *spans;
    int64_t tokens, n_parts, kv_heads, stem, longest;
    float scaling;
} Task;

/* Keys and values of n tokens, as they lie and across: (n, WIDTH) and (WIDTH, across), of which `columns` count, n and
   what is left of 16. */
typedef struct {
    float *key, *value, *key_across, *value_across, *key_grad, *value_grad;
    int64_t n, across, columns;
} Keys;

static int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

/* sum (rows, 16 parts) of a (rows, depth) b (depth, 16 parts), in registers. */
static inline __attribute__((always_inline)) void tile(float *sum, int64_t sum_row, const float *a, int64_t a_row,
                                                       int64_t a_column, const float *b, int64_t b_row, int64_t depth,
                                                       int add, const int rows, const int parts)
{
    lanes total[6][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) {
            total[r][p] = (lanes){0};
            if (add) memcpy(&total[r][p], sum + r * sum_row + 16 * p, sizeof(lanes));
        }
    for (int64_t k = 0; k < depth; k++) {
        lanes right[4];
        for (int p = 0; p < parts; p++) memcpy(&right[p], b + k * b_row + 16 * p, sizeof(lanes));
        for (int r = 0; r < rows; r++) {
            float left = a[r * a_row + k * a_column];
            for (int p = 0; p < parts; p++) total[r][p] += left * right[p];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) memcpy(sum + r * sum_row + 16 * p, &total[r][p], sizeof(lanes));
}

/* sum (rows, columns) = or += a (rows, depth) b (depth, columns), columns a multiple of 16. Element (i, k) of a is at
   i a_row + k a_column. */
static void multiply(float *sum, int64_t sum_row, const float *a, int64_t a_row, int64_t a_column, const float *b,
                     int64_t b_row, int64_t rows, int64_t columns, int64_t depth, int add)
{
    for (int64_t j = 0; j < columns; j += 64) {
        int parts = columns - j < 64 ? (int)(columns - j) / 16 : 4;
        for (int64_t i = 0; i < rows;) {
            float *to = sum + i * sum_row + j;
            const float *left = a + i * a_row, *right = b + j;
#define TILE(rows, parts) tile(to, sum_row, left, a_row, a_column, right, b_row, depth, add, rows, parts)
            if (i + 6 <= rows) {
                if (parts == 4) TILE(6, 4);
                else if (parts == 3) TILE(6, 3);
                else if (parts == 2) TILE(6, 2);
                else TILE(6, 1);
                i += 6;
            } else {
                if (parts == 4) TILE(1, 4);
                else if (parts == 3) TILE(1, 3);
                else if (parts == 2) TILE(1, 2);
                else TILE(1, 1);
                i += 1;
            }
        }
    }
}

/* A head's numbers, turned by its position where positions turn it: x cos + (-x_2, x_1) sin. */
static void read_turned(const Task *task, const number *from, int64_t token, float *to)
{
    float x[WIDTH];
    for (int d = 0; d < WIDTH; d++) x[d] = wide(from[d]);
    if (!task->cosine) {
        memcpy(to, x, sizeof x);
        return;
    }
    const float *cosine = task->cosine + token * WIDTH, *sine = task->sine + token * WIDTH;
    for (int d = 0; d < WIDTH / 2; d++) to[d] = x[d] * cosine[d] - x[d + WIDTH / 2] * sine[d];
    for (int d = WIDTH / 2; d < WIDTH; d++) to[d] = x[d] * cosine[d] + x[d - WIDTH / 2] * sine[d];
}

/* The gradient of what was read so, from that of what was made of it. */
static void write_turned(const Task *task, const float *grad, int64_t token, number *to)
{
    float back[WIDTH];
    if (task->cosine) {
        const float *cosine = task->cosine + token * WIDTH, *sine = task->sine + token * WIDTH;
        for (int d = 0; d < WIDTH / 2; d++) back[d] = grad[d] * cosine[d] + grad[d + WIDTH / 2] * sine[d + WIDTH / 2];
        for (int d = WIDTH / 2; d < WIDTH; d++)
            back[d] = grad[d] * cosine[d] - grad[d - WIDTH / 2] * sine[d - WIDTH / 2];
    } else {
        memcpy(back, grad, sizeof back);
    }
    for (int d = 0; d < WIDTH; d++) to[d] = narrow(back[d]);
}

/* Room for n keys. */
static Keys keys_of(float *memory, int64_t n)
{
    int64_t size = padded(n) * WIDTH;
    return (Keys){memory, memory + size, memory + 2 * size, memory + 3 * size, memory + 4 * size, memory + 5 * size,
                  0, padded(n), 0};
}

/* Read tokens from `begin` to `end` behind those that are there. */
static void append(Keys *keys, const Task *task, int64_t head, int64_t begin, int64_t end)
{
    for (int64_t token = begin; token < end; token++, keys->n++) {
        int64_t from = (token * task->kv_heads + head) * WIDTH;
        float *key = keys->key + keys->n * WIDTH, *value = keys->value + keys->n * WIDTH;
        read_turned(task, task->key + from, token, key);
        for (int d = 0; d < WIDTH; d++) value[d] = wide(task->value[from + d]);
    }
}

/* Lay them across too, with zeros up to the next multiple of 16; gradients start at zero. */
static void prepare(Keys *keys, int with_gradients)
{
    keys->across = keys->columns = padded(keys->n);
    for (int d = 0; d < WIDTH; d++)
        for (int64_t t = 0; t < keys->across; t++) {
            keys->key_across[d * keys->across + t] = t < keys->n ? keys->key[t * WIDTH + d] : 0;
            if (with_gradients) keys->value_across[d * keys->across + t] = t < keys->n ? keys->value[t * WIDTH + d] : 0;
        }
    if (with_gradients) {
        memset(keys->key_grad, 0, keys->n * WIDTH * sizeof(float));
        memset(keys->value_grad, 0, keys->n * WIDTH * sizeof(float));
    }
}

/* A block of queries: `count` tokens from `first` of a span that begins at `begin`. Scores lie (rows, stride): the
   context's, padded, then the span's own up to the block's last. */
typedef struct {
    int64_t begin, first, count, rows, own, own_padded, stride;
} Block;

static Block block_of(const Keys *context, int64_t begin, int64_t first, int64_t end)
{
    int64_t count = end - first < TOKENS ? end - first : TOKENS, own = first + count - begin;
    return (Block){begin, first, count, count * GROUP, own, padded(own), context->columns + padded(own)};
}

/* Queries of a block (rows, WIDTH), scaled, and their scores. */
static void score(const Task *task, int64_t head, const Block *block, const Keys *context, const Keys *own,
                  float *query, float *scores)
{
    for (int64_t row = 0; row < block->rows; row++) {
        int64_t token = block->first + row / GROUP, from = (token * task->kv_heads + head) * GROUP + row % GROUP;
        read_turned(task, task->query + from * WIDTH, token, query + row * WIDTH);
        for (int d = 0; d < WIDTH; d++) query[row * WIDTH + d] *= task->scaling;
    }
    multiply(scores, block->stride, query, WIDTH, 1, context->key_across, context->across, block->rows,
             context->columns, WIDTH, 0);
    multiply(scores + context->columns, block->stride, query, WIDTH, 1, own->key_across, own->across, block->rows,
             block->own_padded, WIDTH, 0);
}

/* e^(score - less) in a row, zero where it is not to be seen; returns the sum. */
static float soften(float *scores, int64_t n, int64_t end, float less)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < n; t++) {
        scores[t] = exponential(scores[t] - less);
        sum += scores[t];
    }
    for (int64_t t = n; t < end; t++) scores[t] = 0;
    return sum;
}

static float largest(const float *scores, int64_t n, float top)
{
#pragma omp simd reduction(max : top)
    for (int64_t t = 0; t < n; t++) top = scores[t] > top ? scores[t] : top;
    return top;
}

static void attend_span(const Task *task, int64_t head, const Keys *context, int64_t begin, int64_t end, float *scratch)
{
    Keys own = keys_of(scratch, end - begin);
    append(&own, task, head, begin, end);
    prepare(&own, 0);
    float *query = scratch + 6 * own.across * WIDTH, *mixed = query + ROWS * WIDTH, *scores = mixed + ROWS * WIDTH;
    for (int64_t first = begin; first < end; first += TOKENS) {
        Block block = block_of(context, begin, first, end);
        float sums[ROWS];
        score(task, head, &block, context, &own, query, scores);
        for (int64_t row = 0; row < block.rows; row++) {
            int64_t token = first + row / GROUP, seen = token - begin + 1;
            float *far = scores + row * block.stride, *near = far + context->columns;
            float top = largest(near, seen, largest(far, context->n, -INFINITY));
            sums[row] = soften(far, context->n, context->columns, top) + soften(near, seen, block.own_padded, top);
            task->normaliser[(token * task->kv_heads + head) * GROUP + row % GROUP] = top + logf(sums[row]);
        }
        multiply(mixed, WIDTH, scores, block.stride, 1, context->value, WIDTH, block.rows, WIDTH, context->n, 0);
        multiply(mixed, WIDTH, scores + context->columns, block.stride, 1, own.value, WIDTH, block.rows, WIDTH,
                 block.own, 1);
        for (int64_t row = 0; row < block.rows; row++) {
            int64_t to = ((first + row / GROUP) * task->kv_heads + head) * GROUP + row % GROUP;
            for (int d = 0; d < WIDTH; d++) task->mixed[to * WIDTH + d] = narrow(mixed[row * WIDTH + d] / sums[row]);
        }
    }
}

/* p (rows, n) and the gradient of what it weighs: those of values and keys, and of queries but for scaling; then p is
   overwritten by the gradient of the scores. `change` (rows, n): that of p on entry. */
static void pull(float *p, float *change, int64_t stride, const float *query, const float *grad, const float *delta,
                 float *query_grad, int64_t rows, const Keys *keys, int64_t n, int64_t n_padded, int add)
{
    multiply(change, stride, grad, WIDTH, 1, keys->value_across, keys->across, rows, n_padded, WIDTH, 0);
    multiply(keys->value_grad, WIDTH, p, 1, stride, grad, WIDTH, n, WIDTH, rows, 1);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t t = 0; t < n_padded; t++) p[row * stride + t] *= change[row * stride + t] - delta[row];
    multiply(keys->key_grad, WIDTH, p, 1, stride, query, WIDTH, n, WIDTH, rows, 1);
    multiply(query_grad, WIDTH, p, stride, 1, keys->key, WIDTH, rows, WIDTH, n, add);
}

static void pull_span(const Task *task, int64_t head, Keys *context, Keys *own, int64_t begin, int64_t end,
                      float *scratch)
{
    float *query = scratch, *grad = query + ROWS * WIDTH, *query_grad = grad + ROWS * WIDTH;
    float *scores = query_grad + ROWS * WIDTH;
    for (int64_t first = begin; first < end; first += TOKENS) {
        Block block = block_of(context, begin, first, end);
        float *change = scores + ROWS * block.stride, delta[ROWS];
        score(task, head, &block, context, own, query, scores);
        for (int64_t row = 0; row < block.rows; row++) {
            int64_t token = first + row / GROUP, seen = token - begin + 1;
            int64_t from = (token * task->kv_heads + head) * GROUP + row % GROUP;
            float *far = scores + row * block.stride, *near = far + context->columns, sum = 0;
            soften(far, context->n, context->columns, task->normaliser[from]);
            soften(near, seen, block.own_padded, task->normaliser[from]);
            for (int d = 0; d < WIDTH; d++) grad[row * WIDTH + d] = wide(task->grad[from * WIDTH + d]);
#pragma omp simd reduction(+ : sum)
            for (int d = 0; d < WIDTH; d++) sum += grad[row * WIDTH + d] * wide(task->mixed_in[from * WIDTH + d]);
            delta[row] = sum;
        }
        pull(scores, change, block.stride, query, grad, delta, query_grad, block.rows, context, context->n,
             context->columns, 0);
        pull(scores + context->columns, change + context->columns, block.stride, query, grad, delta, query_grad,
             block.rows, own, block.own, block.own_padded, 1);
        for (int64_t row = 0; row < block.rows; row++) {
            int64_t token = first + row / GROUP, to = (token * task->kv_heads + head) * GROUP + row % GROUP;
            for (int d = 0; d < WIDTH; d++) query_grad[row * WIDTH + d] *= task->scaling;
            write_turned(task, query_grad + row * WIDTH, token, task->query_grad + to * WIDTH);
        }
    }
}

/* Give n tokens from `begin` the gradients of keys from `at`. */
static void give(const Task *task, int64_t head, const float *key_grad, const float *value_grad, int64_t begin,
                 int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        int64_t to = ((begin + t) * task->kv_heads + head) * WIDTH;
        write_turned(task, key_grad + t * WIDTH, begin + t, task->key_grad + to);
        for (int d = 0; d < WIDTH; d++) task->value_grad[to + d] = narrow(value_grad[t * WIDTH + d]);
    }
}

/* Memory of a thread, or NULL, and `failed` is set: context and own of up to `longest` tokens each, and a block with its scores. */
static float *room(const Task *task, int *failed)
{
    int64_t keys = padded(task->longest + 16);
    int64_t floats = 2 * 6 * keys * WIDTH + 3 * ROWS * WIDTH + 2 * ROWS * 2 * keys;
    float *memory = aligned_alloc(64, padded(floats) * sizeof(float));
    if (!memory)
#pragma omp atomic write
        *failed = 1;
    return memory;
}

/* Is it the first part of its tree, the one that asks for the prompt itself? */
static int begins(const Task *task, int64_t part)
{
    return part == 0 || task->parts[4 * part] != task->parts[4 * part - 4];
}

/* Returns 0, or 1 where there is no memory. */
int attend_forest(const Task *task)
{
    int failed = 0;
#pragma omp parallel
    {
        float *memory = room(task, &failed);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < task->n_parts * task->kv_heads; unit++) {
            if (!memory) continue;
            int64_t head = unit % task->kv_heads, part = unit / task->kv_heads;
            const int64_t *tree = task->parts + part * 4;
            Keys context = keys_of(memory, task->longest);
            float *scratch = memory + 6 * context.across * WIDTH;
            append(&context, task, head, 0, tree[0] < task->stem ? 0 : task->stem);
            if (begins(task, part)) {
                prepare(&context, 0);
                attend_span(task, head, &context, tree[0], tree[1], scratch);
            }
            append(&context, task, head, tree[0], tree[1]);
            prepare(&context, 0);
            for (int64_t span = tree[2]; span < tree[3]; span++)
                attend_span(task, head, &context, task->spans[2 * span], task->spans[2 * span + 1], scratch);
        }
        free(memory);
    }
    return failed;
}

static void add(float *sum, const float *more, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += more[i];
}

/* One part's gradients, but for those of its context's keys and values: share (2, longest, WIDTH), the stem's first. */
static void pull_part(const Task *task, int64_t head, int64_t part, float *memory, float *share)
{
    const int64_t *tree = task->parts + part * 4;
    int64_t far = tree[0] < task->stem ? 0 : task->stem, prompt = tree[1] - tree[0];
    Keys context = keys_of(memory, task->longest);
    float *scratch = memory + 6 * context.across * WIDTH;
    append(&context, task, head, 0, far);
    append(&context, task, head, tree[0], tree[1]);
    prepare(&context, 1);
    for (int64_t span = tree[2]; span < tree[3]; span++) {
        int64_t begin = task->spans[2 * span], end = task->spans[2 * span + 1];
        Keys own = keys_of(scratch, end - begin);
        append(&own, task, head, begin, end);
        prepare(&own, 1);
        pull_span(task, head, &context, &own, begin, end, scratch + 6 * padded(end - begin) * WIDTH);
        give(task, head, own.key_grad, own.value_grad, begin, end - begin);
    }
    if (begins(task, part)) {  /* of the prompt itself the stem is the context, and what follows it its own */
        Keys before = context, own = keys_of(scratch, prompt);
        append(&own, task, head, tree[0], tree[1]);
        prepare(&own, 1);
        before.n = far;
        before.columns = padded(far);
        pull_span(task, head, &before, &own, tree[0], tree[1], scratch + 6 * padded(prompt) * WIDTH);
        add(context.key_grad + far * WIDTH, own.key_grad, prompt * WIDTH);
        add(context.value_grad + far * WIDTH, own.value_grad, prompt * WIDTH);
    }
    memcpy(share, context.key_grad, (far + prompt) * WIDTH * sizeof(float));
    memcpy(share + task->longest * WIDTH, context.value_grad, (far + prompt) * WIDTH * sizeof(float));
}

/* What the parts have to say to a head's prompts and stem, summed in order: threads do not decide how it is rounded. */
static void gather(const Task *task, int64_t head, float *shares)
{
    int64_t one = 2 * task->longest * WIDTH, values = task->longest * WIDTH, stem = task->stem;
    float *whole = shares + head * one;  /* of the first part, the stem where there is one */
    for (int64_t part = 0; part < task->n_parts;) {
        const int64_t *tree = task->parts + part * 4;
        int64_t far = tree[0] < stem ? 0 : stem, prompt = tree[1] - tree[0], n = (far + prompt) * WIDTH;
        float *sum = shares + (part * task->kv_heads + head) * one;
        for (part++; part < task->n_parts && !begins(task, part); part++) {
            const float *more = shares + (part * task->kv_heads + head) * one;
            add(sum, more, n);
            add(sum + values, more + values, n);
        }
        if (far) {
            add(whole, sum, stem * WIDTH);
            add(whole + values, sum + values, stem * WIDTH);
        }
        if (tree[0] >= stem) give(task, head, sum + far * WIDTH, sum + values + far * WIDTH, tree[0], prompt);
    }
    if (stem) give(task, head, whole, whole + values, 0, stem);
}

/* shares (n_parts, kv_heads, 2, longest, WIDTH): see `pull_part`. Returns as `attend_forest`. */
int pull_forest(const Task *task, float *shares)
{
    int failed = 0;
#pragma omp parallel
    {
        float *memory = room(task, &failed);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < task->n_parts * task->kv_heads; unit++)
            if (memory)
                pull_part(task, unit % task->kv_heads, unit / task->kv_heads, memory,
                          shares + unit * 2 * task->longest * WIDTH);
        free(memory);
#pragma omp for schedule(static)
        for (int64_t head = 0; head < task->kv_heads; head++)
            if (!failed) gather(task, head, shares);
    }
    return failed;
}
