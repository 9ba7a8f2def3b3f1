/* One token a row from logits, as assay/rollout/sampling.py says. BLOCK: logits whose masses are summed together. */

#include "numbers.h"

/* logits (rows, vocabulary); over (rows,): 1 / temperature; uniforms (rows,) in [0, 1), negative: the likeliest token.
   scratch (rows, blocks). tokens (rows,); logprobs (rows,): log softmax(logits * over) at them; totals (rows,): the
   sums of e^(logit - largest), not finite where the logits hold NaN or infinity. */
void draw(const number *restrict logits, const float *restrict over, const double *restrict uniforms,
          float *restrict scratch, int64_t *restrict tokens, float *restrict logprobs, double *restrict totals,
          int64_t rows, int64_t vocabulary)
{
    int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *restrict z = logits + row * vocabulary;
        float *restrict sums = scratch + row * blocks, top = -INFINITY, scale = over[row];
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < vocabulary; i++) top = wide(z[i]) > top ? wide(z[i]) : top;
        double whole = 0;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t end = (b + 1) * BLOCK < vocabulary ? (b + 1) * BLOCK : vocabulary, i = b * BLOCK;
            lanes masses = {0};
            for (; i + 16 <= end; i += 16) masses += exponentials((load(z + i) - top) * scale);
            float sum = total(masses);
            for (; i < end; i++) sum += exponential((wide(z[i]) - top) * scale);
            sums[b] = sum;
            whole += sum;
        }
        totals[row] = whole;
        tokens[row] = 0;
        if (!isfinite(whole)) continue;

        int64_t token = 0;
        if (uniforms[row] < 0) {
            while (wide(z[token]) < top) token++;
        } else {
            double target = uniforms[row] * whole, before = 0, reached = 0;
            int64_t block = 0;  /* the first whose cumulative sum exceeds the target, else the last that adds to it */
            for (int64_t b = 0; b < blocks; b++) {
                if (sums[b] > 0) block = b, before = reached;
                reached += sums[b];
                if (reached > target) break;
            }
            int64_t end = (block + 1) * BLOCK < vocabulary ? (block + 1) * BLOCK : vocabulary;
            for (int64_t i = block * BLOCK; i < end; i++) {
                float mass = exponential((wide(z[i]) - top) * scale);
                if (mass > 0) token = i;
                before += mass;
                if (before > target) break;
            }
        }
        tokens[row] = token;
        logprobs[row] = (float)((double)(wide(z[token]) - top) * scale - log(whole));
    }
}
