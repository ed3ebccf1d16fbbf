/* What test_digests.py preloads into qemu-user: fused multiply-adds that leave the upper halves of the vector registers clean.

   qemu computes each of the emulated program's fused multiply-adds by a call of fmaf or fma. Its translated code leaves upper
   halves dirty, and on an Intel of Ice Lake or later each change between its SSE code and libm's AVX code then costs some 70
   cycles: measured there, 175 ns for each product of a matrix product, and 24 ns with these two. The results are libm's own,
   which takes the same instruction. The emulated program does not see this library. */

#include <immintrin.h>

float fmaf(float x, float y, float z)
{
    float result = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(z)));
    _mm256_zeroupper();
    return result;
}

double fma(double x, double y, double z)
{
    double result = _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(x), _mm_set_sd(y), _mm_set_sd(z)));
    _mm256_zeroupper();
    return result;
}
