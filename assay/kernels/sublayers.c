/* What an update does beside matrix products in the layers, as assay/policy/sublayers.py says. The residual stream and
   the weights of norms are float; what products take and give are numbers. */

#include <omp.h>

#include "numbers.h"

/* y = x r w with r = (mean(x^2) + eps)^-1/2, for rows of `size`; r (rows,) is kept. */
void normalise(const float *restrict x, const float *restrict weight, number *restrict y, float *restrict r,
               int64_t rows, int64_t size, float eps)
{
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict here = x + row * size;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < size; i++) squares += here[i] * here[i];
        float scale = r[row] = 1.0f / sqrtf(squares / size + eps);
        for (int64_t i = 0; i < size; i++) y[row * size + i] = narrow(here[i] * scale * weight[i]);
    }
}

/* dx = r (w dy - n mean(w dy n)) with n = x r, and dw = sum(dy n): each thread's share in weight_grads (threads, size),
   which begin at zero. */
void pull_norm(const float *restrict x, const float *restrict weight, const float *restrict r,
               const number *restrict dy, float *restrict dx, float *restrict weight_grads, int64_t rows,
               int64_t size, int threads)
{
#pragma omp parallel num_threads(threads)
    {
        float *restrict mine = weight_grads + omp_get_thread_num() * size;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            const float *restrict here = x + row * size;
            const number *restrict grad = dy + row * size;
            float *restrict out = dx + row * size;
            float scale = r[row], product = 0;
#pragma omp simd reduction(+ : product)
            for (int64_t i = 0; i < size; i++) {
                float n = here[i] * scale, change = wide(grad[i]);
                mine[i] += change * n;
                product += change * weight[i] * n;
            }
            float mean = product / size;
            for (int64_t i = 0; i < size; i++) out[i] = scale * (wide(grad[i]) * weight[i] - here[i] * scale * mean);
        }
    }
}

/* h = silu(g) u. */
void gate(const number *restrict g, const number *restrict u, number *restrict h, int64_t n)
{
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        float x = wide(g[i]);
        h[i] = narrow(x * sigmoid(x) * wide(u[i]));
    }
}

/* From dh, which du may overwrite: h once more, du = dh silu(g), dg = dh u silu'(g), where
   silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g). */
void pull_gate(const number *restrict g, const number *restrict u, const number *dh, number *restrict h,
               number *restrict dg, number *du, int64_t n)
{
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        float x = wide(g[i]), s = sigmoid(x), up = wide(u[i]), change = wide(dh[i]);
        h[i] = narrow(x * s * up);
        du[i] = narrow(change * x * s);
        dg[i] = narrow(change * up * s * (1.0f + x * (1.0f - s)));
    }
}
