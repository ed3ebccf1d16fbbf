/* What test_digests.py preloads into qemu-user: fused multiply-adds that leave the upper halves of the vector registers clean.

   qemu computes each of the emulated program's fused multiply-adds by a call of fmaf or fma. Its translated code leaves upper
   halves dirty, and some Intels then wait at each change between its SSE code and libm's AVX code: on one with AVX-512 and AMX
   a multiply-add of a matrix product took 175 ns, and takes 24 ns with these two. The results are libm's own,
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
