/* A decoding step of a whole network in one go: the threads start once, not once an operation. */

#include "decode.c"
#include "product.c"

/* Without weight (NULL) the layer does not have it. */
struct norm {
    const number *weight;
    int64_t size;
    float eps;
};

/* What layers of one kind have in common: see attend_rows. */
struct kind {
    const number *cosine, *sine;
    const int64_t *first;
};

struct layer {
    struct norm before, after, before_mlp, after_mlp, of_queries, of_keys;
    struct map qkv, out, gate_up, down;
    const struct kind *kind;
    number *keys, *values;
};

/* What passes between operations: `n` rows of as many numbers as the widest layer has. */
struct buffers {
    number *x, *normal, *added, *heads, *mixed, *wide, *gated;
};

/* x, plus `added` unless NULL, and its normalisation where there is one; returns what the next operation reads. */
static const number *joined(const struct norm *norm, number *x, const number *added, number *normal, int64_t n,
                            int64_t hidden)
{
    if (norm->weight) {
        normalise_rows(x, added, norm->weight, normal, n, norm->size, norm->eps);
        return normal;
    }
    if (added) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n * hidden; i++) x[i] = narrow(wide(x[i]) + wide(added[i]));
    }
    return x;
}

/* The `heads` of each row, `apart` from those of the next, normalised in place. */
static void normalise_heads(const struct norm *norm, number *heads, int64_t n, int64_t apart, int64_t numbers)
{
    if (!norm->weight) return;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < n; row++)
        for (int64_t at = 0; at < numbers; at += norm->size) {
            number *here = heads + row * apart + at;
            normalise_row(here, norm->weight, here, norm->size, norm->eps);
        }
}

/* Logits (n, vocabulary) after the tokens whose embeddings (n, hidden) are in buffers.x, which is overwritten. */
void step(const struct layer *layers, int64_t count, const struct norm *last, const struct map *head,
          const struct rows *rows, const struct buffers *buffers, number *logits, int threads)
{
    int64_t n = rows->n, hidden = layers->qkv.depth, kv_width = rows->kv_heads * WIDTH;
    number *x = buffers->x, *normal = buffers->normal, *y = buffers->added, *heads = buffers->heads;
#pragma omp parallel num_threads(threads)
    {
        const number *added = NULL, *read;
        for (const struct layer *layer = layers; layer < layers + count; layer++) {
            read = joined(&layer->before, x, added, normal, n, hidden);
            multiply(&layer->qkv, read, heads, n, NULL);
            normalise_heads(&layer->of_queries, heads, n, layer->qkv.width, GROUP * kv_width);
            normalise_heads(&layer->of_keys, heads + GROUP * kv_width, n, layer->qkv.width, kv_width);
            const struct kind *kind = layer->kind;
            attend_rows(rows, heads, kind->cosine, kind->sine, kind->first, layer->keys, layer->values, buffers->mixed);
            multiply(&layer->out, buffers->mixed, y, n, &layer->gate_up);
            joined(&layer->after, y, NULL, y, n, hidden);
            read = joined(&layer->before_mlp, x, y, normal, n, hidden);
            multiply(&layer->gate_up, read, buffers->wide, n, &layer->down);
            gate_rows(buffers->wide, buffers->gated, n, layer->down.depth);
            multiply(&layer->down, buffers->gated, y, n, layer + 1 < layers + count ? &layer[1].qkv : head);
            joined(&layer->after_mlp, y, NULL, y, n, hidden);
            added = y;
        }
        multiply(head, joined(last, x, added, normal, n, hidden), logits, n, NULL);
    }
}
