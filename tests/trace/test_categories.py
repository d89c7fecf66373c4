"""Categories of real kernel names."""

from __future__ import annotations

import re

import pytest

from kdvfs_sim.core.kinds import CATEGORIES
from kdvfs_sim.trace.categories import _PATTERNS, category_of

NAMES = {
    "gemm": [
        "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
        "ampere_sgemm_128x64_nn",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)",
        "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32",
        "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x128x32",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)",
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "volta_scudnn_128x64_relu_medium_nn_v1",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "triton_tem_fused_mm_0",
        "ck::kernel_gemm_xdlops",
        "igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt64x64x64",
    ],
    "attention": [
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128",
        "attn_fwd",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<true>",
    ],
    "normalization": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>",
        "void flashinfer::norm::RMSNormKernel<8u>",
        "triton_red_fused_native_layer_norm_0",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>",
        "void cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>",
        "void splitKreduce_kernel<32, 16, int, float>",
        "triton_per_fused__softmax_1",
        "void at::native::max_pool_forward_nchw<float, float>",
        "void cub::DeviceRadixSortOnesweepKernel<Policy800, false, long>",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl(...)::{lambda()#1}>",
        "triton_poi_fused_add_cos_sin_0",
        "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float>>",
        "void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        "void fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>",
        "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal_and_transform>",
    ],
    "copy": [
        "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long, unsigned int, 1, 1, -2>",
        "split_embedding_codegen_forward_unweighted_kernel<c10::Half>",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
        "batched_transpose_64x64_pack_4x4_ediv_4x4_half",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int>",
        "__amd_rocclr_copyBuffer",
        "__amd_rocclr_fillBufferAligned",
        "triton_poi_fused_cat_3",
    ],
    "communication": [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void vllm::cross_device_reduce_2stage<half, 8>",
        "rcclDevKernel_Generic",
        "void sglang::one_shot_all_reduce<half>",
        "mscclKernel_Sum_half_Simple",
    ],
    "optimizer": [
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>",
        "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedSgdMathFunctor<float>>",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>>",
    ],
    "other": ["spin_kernel(long)", "my_solver_step", "triton__0d1d2d"],
}


@pytest.mark.parametrize(
    ("category", "name"), [(category, name) for category, names in NAMES.items() for name in names]
)
def test_real_names(category: str, name: str) -> None:
    assert category_of(name) == category


def test_every_row_of_the_table_decides_for_some_name() -> None:
    """A pattern that no name here needs is dead weight."""
    lowered = [name.lower() for names in NAMES.values() for name in names]
    deciding = {next((r for r, (_, p) in enumerate(_PATTERNS) if re.search(p, name)), -1) for name in lowered}
    assert deciding >= set(range(len(_PATTERNS)))
    assert {category for category, _ in _PATTERNS} == set(CATEGORIES) - {"other"}
