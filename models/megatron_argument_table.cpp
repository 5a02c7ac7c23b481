#include "models/megatron_argument_table.h"

#include <algorithm>
#include <array>
#include <map>

namespace tidemark {
namespace {

// Names are those of Megatron's `args` namespace, as its log prints them. Sources: Megatron-LM's
// megatron/training/arguments.py (core 0.13 to 0.17), Hygon's dcu_megatron / hcu_megatron,
// thu-pacman/BaGuaLu's bgl2/arguments.py and Kwai's Megatron of ATC 2024 (`kaimm_*`).

constexpr std::string_view kModelledSwitches = R"(
  fine_grained_activation_offloading
  account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
  accumulate_allreduce_grads_in_fp32 add_bias_linear add_position_embedding add_qkv_bias
  apply_rope_fusion bf16 bias_swiglu_fusion check_for_nan_in_loss_and_grad
  create_attention_mask_in_dataloader cross_entropy_loss_fusion delay_wgrad_compute
  ep_overlap_early_attn_memory_release fp8_param_gather grad_reduce_in_bf16
  gradient_accumulation_fusion group_query_attention moe_grouped_gemm
  moe_pad_expert_input_to_capacity moe_permute_fusion moe_router_force_load_balancing
  moe_router_fusion moe_shared_expert_gate moe_shared_expert_overlap multi_latent_attention
  overlap_ep_comm_with_split_attn overlap_grad_reduce overlap_moe_expert_parallel_comm
  overlap_p2p_comm overlap_param_gather qk_layernorm recompute_activation_function
  save_flux_gather_input sequence_parallel
  squared_relu swiglu tp_comm_overlap untie_embeddings_and_output_weights use_bridge
  use_distributed_optimizer use_intra_ep use_precision_aware_optimizer use_qk_norm use_quantize_comm
  use_rotary_position_embeddings
)";

// `nnodes` and `nproc_per_node` are torchrun's: together they are the world size.
constexpr std::string_view kModelledValues = R"(
  activation_offload_fraction fine_grained_offloading_max_inflight_offloads
  min_offloaded_tensor_size
  attention_backend context_parallel_size cross_entropy_fusion_impl data_parallel_size
  ddp_bucket_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers exp_avg_dtype
  exp_avg_sq_dtype expert_model_parallel_size expert_tensor_parallel_size extra_vocab_size
  ffn_hidden_size fp8 fp8_recipe global_batch_size hidden_dropout hidden_size kv_channels
  kv_lora_rank main_grads_dtype main_params_dtype make_vocab_size_divisible_by
  max_position_embeddings micro_batch_size microbatch_group_size_per_vp_stage
  moe_expert_capacity_factor moe_ffn_hidden_size moe_flex_dispatcher_backend moe_layer_freq
  moe_router_dtype moe_router_topk moe_shared_expert_intermediate_size moe_token_dispatcher_type
  mtp_num_layers nnodes normalization nproc_per_node num_attention_heads num_experts num_layers
  num_layers_per_virtual_pipeline_stage num_query_groups num_virtual_stages_per_pipeline_rank
  padded_vocab_size parallel_linear_impl pipeline_model_parallel_layout pipeline_model_parallel_size
  position_embedding_type q_lora_rank qk_head_dim qk_pos_emb_head_dim quant_comm_bits
  recompute_granularity recompute_method recompute_num_layers rope_type rotary_percent seq_length
  step_batch_size_schedule tensor_model_parallel_size tokenizer_type v_head_dim
  virtual_pipeline_model_parallel_size vocab_size world_size
)";

constexpr std::string_view kModelledLists = R"(
  cp_comm_type moe_aux_loss_coeff moe_router_load_balancing_type offload_modules
  recompute_modules
)";

// Data, checkpoints, logging, learning rate, tokenizer files, RL, inference, vision; and details of
// a feature that is itself refused below (`fp8_recipe` beside `fp8`).
constexpr std::string_view kIrrelevantSwitches = R"(
  adlr_autoresume align_grad_reduce align_param_gather allow_ambiguous_pad_tokens apply_layernorm_1p
  apply_query_key_layer_scaling apply_wd_to_qk_layernorm async_save
  async_tensor_model_parallel_allreduce attention_softmax_in_fp32 auto_detect_ckpt_format
  barrier_with_L1_time bert_binary_head bgl2_enable_memory_modeling
  bgl2_enable_pp_warmup_forward_backward bgl2_offload_non_contiguous bgl2_offload_pin_memory
  bgl2_patch_te bgl2_prefetch_activation_reload bias_dropout_fusion bias_gelu_fusion
  biencoder_shared_query_context_model cache_mla_latents calc_ft_timeouts calculate_per_token_loss
  check_for_large_grads check_for_spiky_loss ckpt_assume_constant_structure
  ckpt_convert_update_legacy_dist_opt_format ckpt_fully_parallel_load ckpt_fully_parallel_save
  ckpt_fully_parallel_save_deprecated cpu_offloading_retain_pinned_cpu_buffers
  create_all_gather_group data_parallel_random_init data_sharding dataloader_defer_npy_index_mmap
  dataloader_fast_cache_load ddp_average_in_collective decode_only_cuda_graphs
  decrease_batch_size_if_needed deprecated_use_mcore_models deterministic_mode dino_norm_last_layer
  disable_bf16_reduced_precision_matmul disable_chunked_prefill disable_mamba_mem_eff_path
  disable_straggler_on_startup disable_symmetric_registration disable_vision_class_token
  dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014
  distrib_optim_fully_reshardable_mem_efficient dsa_indexer_use_sparse_loss
  enable_a2a_overlap_only_in_1f1b_phase enable_bw_flux_gemmrs_op enable_chunked_prefill
  enable_experimental enable_ft_package enable_full_sharding_in_hsdp enable_gloo_process_groups
  enable_msc enable_one_logger enable_pre_init_ep_overlap_streams eod_mask_loss
  ep_overlap_early_recompute exit_on_missing_checkpoint
  exit_signal_handler exit_signal_handler_for_dataloader exit_signal_handler_for_training
  export_default_te_spec export_force_local_attention export_legacy_megatron
  export_moe_apply_probs_on_input export_offline_model export_qk_l2_norm export_te_mcore_model
  fake_process_group fim_data finetune first_last_layers_bf16 flash_decode
  flight_recorder_dump_on_timeout flight_recorder_extra_dump_on_exec
  flight_recorder_include_only_active flight_recorder_include_stack_trace fp8_wgrad freeze_LM
  freeze_ViT fsdp_double_buffer fsdp_manual_registration full_validation gradient_reduce_div_fusion
  grpo_filter_groups_with_same_reward inference_disable_triton_nvls_kernels
  inference_dynamic_batching inference_dynamic_batching_track_paused_request_events
  inference_fuse_tp_communication inference_moe_disable_fused_quant_kernels inference_rng_tracker
  inference_text_gen_server_logging inference_use_synchronous_zmq_collectives
  inference_wandb_logging init_method_xavier_uniform inprocess_empty_cuda_cache inprocess_restart
  integrate_recompute_to_ep_comm_overlap kaimm_async_dataloader keep_fp8_transpose_cache
  keep_fp8_transpose_cache_when_using_custom_fsdp langrl_external_server
  layernorm_zero_centered_gamma legacy_tokenizer load_main_params_from_ckpt load_model_opt_format
  load_weights log_device_memory_used log_energy log_loss_scale_to_tensorboard
  log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm log_progress log_straggler
  log_throughput log_timers_to_tensorboard log_validation_ppl_to_tensorboard
  log_world_size_to_tensorboard manual_gc manual_gc_eval masked_softmax_fusion mhc_expand_emb
  mhc_fix_muons mhc_fuse_aggregate_compute mhc_fuse_h_post_compute mhc_hres_vwnstyle
  mhc_init_hpre_use_module_layer mhc_lite mhc_use_tilekernels mmap_bin_files mock_data
  moe_pad_experts_for_cuda_graph_inference moe_per_layer_logging moe_router_enable_expert_bias
  moe_router_pre_softmax moe_use_upcycling mtp_standalone mtp_use_repeated_layer
  multiple_validation_sets muon_split_qkv muon_use_nesterov nccl_all_reduce_for_prefill
  no_load_optim no_load_rng no_persist_layer_norm no_save_optim no_save_rng one_logger_async
  output_bert_embeddings overlap_cpu_optimizer_d2h_h2d overlap_p2p_comm_warmup_flush
  override_opt_param_scheduler perform_initialization pin_cpu_grads pin_cpu_params profile
  pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes
  record_memory_history reduce_recompute_for_last_chunk replication report_memory_every_iteration
  reproduce reset_attention_mask reset_position_ids retriever_score_scaling
  retro_verify_neighbor_count rl_calculate_intra_group_similarity
  rl_inference_logprobs_is_correction rl_offload_inference_model_weights_when_idle
  rl_offload_kv_cache_during_training rl_offload_optimizer_during_inference rl_partial_rollouts
  rl_persist_cuda_graphs rl_remove_kv_cache_during_training rl_reset_cuda_graphs rl_skip_bos_token
  rl_training_cuda_graphs rl_verify_model_weights_swap rotary_interleaved
  run_workload_inspector_server scatter_gather_tensors_in_pipeline skip_train
  strict_fsdp_dtensor_load te_rng_tracker test_mode tokenizer_hf_include_special_tokens
  tokenizer_hf_no_include_special_tokens tokenizer_hf_no_use_fast tokenizer_hf_use_fast
  tokenizer_sentencepiece_legacy torch_fsdp2_reshard_after_forward tp_comm_bulk_dgrad
  tp_comm_bulk_wgrad tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag
  tp_comm_split_rs trust_remote_code use_checkpoint_args use_checkpoint_opt_param_scheduler
  use_ckpt_memory_cache use_cpu_initialization use_dist_ckpt use_dist_ckpt_deprecated
  use_fast_rms_norm use_flash_attn use_gloo_process_groups use_hip_profiler use_legacy_static_engine
  use_mamba_mem_eff_path use_mhc_svd use_mp_args_from_checkpoint_args use_mup use_one_sent_docs
  use_persistent_ckpt_worker use_pytorch_profiler use_rope_scaling use_sharp
  use_tokenizer_model_from_checkpoint_args use_torch_optimizer_for_cpu_offload
)";

constexpr std::string_view kIrrelevantValues = R"(
  adam_beta1 adam_beta2 adam_eps adlr_autoresume_interval app_tag_run_name app_tag_run_version
  async_ckpt_cpu_priority async_ckpt_io_priority async_strategy attention_dropout bert_embedder_type
  bert_load bgl2_activation_offload_ratio bgl2_activation_offload_stages
  bgl2_activation_offload_threshold bgl2_memory_flash_attention_kv_threshold bgl2_memory_max_vio
  bgl2_offload_granularity bgl2_offload_min_bytes biencoder_projection_dim block_data_path
  bridge_hf_model check_weight_hash_across_dp_replicas_interval ckpt_convert_format
  ckpt_convert_save ckpt_format ckpt_fully_parallel_load_exchange_algo
  ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save_process_group ckpt_step
  classes_fraction clip_grad collect_log_path comm_time_log_iter config_logger_dir
  consumed_train_samples consumed_valid_samples cuda_graph_warmup_steps data_args_path
  data_cache_path data_parallel_sharding_strategy data_per_class_fraction dataloader_type
  decoupled_lr decoupled_min_lr dino_bottleneck_size dino_freeze_last_layer dino_head_hidden_size
  dino_local_crops_number dino_local_img_size dino_teacher_temp dino_warmup_teacher_temp
  dino_warmup_teacher_temp_epochs dist_ckpt_format_deprecated dist_ckpt_strictness dist_ckpt_workers
  dist_url distributed_backend distributed_timeout_minutes distributed_timeout_seconds_after_init
  dsa_indexer_head_dim dsa_indexer_loss_coeff dsa_indexer_n_heads dsa_indexer_topk
  dump_param_to_param_group_map embedding_init_method_std embedding_path encoder_num_layers
  encoder_seq_length end_weight_decay error_injection_rate error_injection_type
  eval_global_batch_size eval_interval eval_iters evidence_data_path exit_duration_in_mins
  exit_interval exit_signal export_kd_cfg export_kd_teacher_ckpt_format export_kd_teacher_load
  export_kd_teacher_model_config export_kv_cache_quant export_model_type export_quant_cfg
  export_real_quant_cfg fim_eod_token fim_fragment_rate fim_middle_token fim_no_prefix fim_pad_token
  fim_prefix_token fim_rate fim_split_sample fim_spm_rate fim_suffix_token finetune_data_split
  finetune_hf_dataset flight_recorder_dump_path flight_recorder_trace_buffer_size
  fp4_quantizer_factory fp4_recipe fp8_amax_compute_algo fp8_amax_history_len fp8_interval
  fp8_margin fp8_quantizer_factory ft_num_warmup_iters grad_comp_warm_up gradient_sample_ratio
  grpo_clamp_eps_lower grpo_clamp_eps_upper grpo_default_temperature grpo_default_top_p
  grpo_entropy_term_weight grpo_group_size grpo_iterations grpo_kl_beta grpo_prompts_per_step
  head_lr_mult hysteresis ict_head_size ict_load image_tokens_per_sample img_h img_w
  indexer_batch_size indexer_log_interval inference_batch_times_seqlen_threshold
  inference_coordinator_port inference_dynamic_batching_block_size
  inference_dynamic_batching_buffer_guaranteed_fraction
  inference_dynamic_batching_buffer_overflow_factor inference_dynamic_batching_buffer_size_gb
  inference_dynamic_batching_chunk_size inference_dynamic_batching_mamba_memory_ratio
  inference_dynamic_batching_max_requests inference_dynamic_batching_max_requests_override
  inference_dynamic_batching_max_tokens inference_dynamic_batching_max_tokens_override
  inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_unified_memory_level
  inference_grouped_gemm_backend inference_logging_step_interval inference_max_batch_size
  inference_max_requests inference_max_seq_length inference_wandb_logging_step_interval
  init_method_std initial_loss_scale inprocess_active_world_size inprocess_barrier_timeout
  inprocess_completion_timeout inprocess_granularity inprocess_hard_timeout
  inprocess_heartbeat_interval inprocess_heartbeat_timeout inprocess_last_call_wait
  inprocess_max_iterations inprocess_monitor_process_interval inprocess_monitor_thread_interval
  inprocess_progress_watchdog_interval inprocess_soft_timeout inprocess_termination_grace_time
  iter_per_epoch iteration_sample_ratio kaimm_gc_interval kaimm_warmup_iters
  kitchen_attention_backend langrl_env_config langrl_inference_server_conversation_template
  langrl_inference_server_type layernorm_epsilon lazy_mpu_init linear_conv_kernel_dim
  linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim lion_beta1
  lion_beta2 load local_rank log_interval log_memory_interval logging_level loss_scale
  loss_scale_window lr lr_decay_iters lr_decay_samples lr_decay_style lr_warmup_fraction
  lr_warmup_init lr_warmup_iters lr_warmup_samples lr_wsd_decay_iters lr_wsd_decay_samples
  lr_wsd_decay_style mamba_head_dim mamba_inference_conv_states_dtype
  mamba_inference_ssm_states_dtype mamba_num_groups mamba_num_heads mamba_state_dim
  manual_gc_interval mask_factor mask_prob mask_type master_addr master_port max_padding_length
  max_tokens_to_oom megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype
  megatron_fsdp_main_params_dtype memory_snapshot_path merge_file mhc_init_gating_factor
  mhc_log_amax_per_step mhc_recompute_layer_num mhc_sinkhorn_iterations mhc_tau
  mid_level_dataset_surplus min_loss_scale min_lr mlp_chunks_for_prefill
  moe_deepep_num_sms moe_hybridep_num_sms moe_router_bias_update_rate moe_router_group_topk
  moe_router_num_groups moe_router_score_function moe_router_topk_scaling_factor
  moe_token_drop_policy moe_upcycling_granularity mscale mscale_all_dim mtp_hybrid_override_pattern
  mtp_loss_scaling_factor muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec
  muon_momentum muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_tp_mode
  mup_attn_scale_power mup_base_head_dim mup_base_hidden_size mup_embedding_mult mup_output_mult
  mup_width_mult nccl_communicator_config_path no_weight_decay_cond_type node_rank
  non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_algo
  non_persistent_local_ckpt_dir non_persistent_save_interval norm_epsilon num_channels num_classes
  num_dataset_builder_threads num_layers_at_end_in_bf16 num_layers_at_start_in_bf16
  num_residual_streams num_speculative_tokens num_workers object_storage_cache_path
  one_logger_project one_logger_run_name optimizer_offload_fraction outer_dp_sharding_strategy
  overlap_moe_expert_parallel_comm_impl params_dtype patch_dim patch_size patch_tokenizer_type
  per_dataset_sequences_path per_split_data_args_path pipe_sp_strategy
  pipeline_model_parallel_comm_backend pretrained_checkpoint profile_dir profile_step_end
  profile_step_start qk_clip_alpha qk_clip_threshold quant_group_size quant_scale_dtype
  query_in_block_prob rank rank_adjust_window_size rdzv_backend rdzv_endpoint rdzv_id
  refit_method relative_attention_max_distance
  relative_attention_num_buckets replication_factor replication_jump rerun_mode
  result_rejected_tracker_filename retriever_seq_length retro_attention_gate
  retro_cyclic_train_iters retro_encoder_attention_dropout retro_encoder_hidden_dropout
  retro_encoder_layers retro_num_neighbors retro_num_retrieved_chunks retro_project_dir
  rl_default_temperature rl_default_top_k rl_default_top_p rl_generation_batch_size
  rl_importance_sampling_truncation_coef rl_inference_expert_model_parallel_size
  rl_inference_expert_tensor_model_parallel_size rl_inference_model_unified_memory_level
  rl_inference_pipeline_model_parallel_size rl_inference_tensor_model_parallel_size
  rl_kv_cache_management_mode rl_num_parallel_generation_batches rl_num_parallel_generations
  rl_parallel_generation_tasks rl_prompts_per_eval rl_sequence_packing_algo
  rl_sequence_packing_bin_size rl_sequence_packing_max_sequences_per_bin rope_scaling_factor
  rotary_base rotary_scaling_factor rotary_seq_len_interpolation_factor sample_rate save
  save_dgrads_interval save_interval save_retain_interval save_wgrads_interval schedule_timer_end
  schedule_timer_start seed sft_tokenizer_prompt_format sgd_momentum sharp_enabled_group
  short_seq_prob skipped_train_samples spatial_merge_size split start_weight_decay
  straggler_ctrlr_port straggler_minmax_count suggested_communication_unit_size swin_backbone_type
  symmetric_ar_type teacher_model_config temporal_patch_size tensorboard_dir
  tensorboard_log_interval tensorboard_queue_size tiktoken_num_special_tokens tiktoken_pattern
  timing_log_level timing_log_option titles_data_path tokenizer_metadata tokenizer_model
  tp_comm_bootstrap_backend tp_comm_overlap_cfg train_iters train_samples train_sync_interval
  transformer_pipeline_model_parallel_size vision_backbone_type vision_pretraining_type vocab_file
  wandb_entity wandb_exp_name wandb_project wandb_save_dir weight_decay weight_decay_incr_style
  wgrad_deferral_limit window_attn_skip_freq
)";

constexpr std::string_view kIrrelevantLists = R"(
  bgl2_offload_modules cuda_graph_modules cuda_graph_scope data_path fp8_ctx_modules
  high_priority_stream_groups iterations_to_skip mrope_section
  phase_transition_iterations profile_ranks recompute_layer_ids recompute_mtp_layer_ids
  retriever_report_topk_accuracies rl_inference_parsers swap_modules test_data_path
  tiktoken_special_tokens tokenizer_special_tokens train_data_path valid_data_path
)";

// Would change memory or time, and Job has no field for it. Third column: the values that are
// accepted, where that is not simply "off".
struct NotModelled {
  std::string_view name;
  Arity arity;
  std::string_view accepted;
  std::string_view reason = {};  // where a user would want to know
};

constexpr NotModelled kNotModelled[] = {
    {"activation_func_fp8_input_store", Arity::kSwitch, "",
     "the input that the activation function keeps is taken to be bf16"},
    {"activation_func_clamp_value", Arity::kValue, ""},
    {"apply_residual_connection_post_layernorm", Arity::kSwitch, ""},
    {"attention_output_gate", Arity::kSwitch, ""},
    {"batch_invariant_mode", Arity::kSwitch, ""},
    {"bgl2_enable_activation_offload", Arity::kSwitch, ""},
    {"bgl2_per_batch_offload_size", Arity::kValue, ""},
    {"checkpoint_activations", Arity::kSwitch, ""},
    {"clone_scatter_output_in_embedding", Arity::kSwitch, "True"},
    {"combined_1f1b", Arity::kSwitch, ""},
    {"context_parallel_comm_overlap_gemm", Arity::kSwitch, "False"},
    {"cpu_offloading", Arity::kSwitch, ""},
    {"cpu_offloading_num_layers", Arity::kValue, ""},
    {"cuda_graph_impl", Arity::kValue, "none"},
    {"ddp_num_buckets", Arity::kValue, ""},
    {"ddp_pad_buckets_for_high_nccl_busbw", Arity::kSwitch, ""},
    {"ddp_param_name_patterns_for_fp32_local_accumulation", Arity::kList, ""},
    {"ddp_reduce_scatter_with_fp32_accumulation", Arity::kSwitch, ""},
    {"decoder_num_layers", Arity::kValue, ""},
    {"decoder_seq_length", Arity::kValue, ""},
    {"defer_embedding_wgrad_compute", Arity::kSwitch, ""},
    {"delay_1f1b_cooldown_wgrad_compute", Arity::kSwitch, ""},
    {"delta_offload_bytes_across_pp_ranks", Arity::kValue, "",
     "it keeps groups of the first microbatches alone, and here all microbatches of a stage have "
     "the same operators"},
    {"disable_backward_fusion", Arity::kSwitch, ""},
    {"disable_jit_fuser", Arity::kSwitch, ""},
    {"distribute_saved_activations", Arity::kSwitch, ""},
    {"empty_unused_memory_level", Arity::kValue, ""},
    {"enable_cuda_graph", Arity::kSwitch, ""},
    {"enable_dynamic_grad_comp", Arity::kSwitch, ""},
    {"enable_gpt_oss", Arity::kSwitch, ""},
    {"enable_hyper_connections", Arity::kSwitch, ""},
    {"enable_vocab_parallel", Arity::kSwitch, ""},
    {"encoder_pipeline_model_parallel_size", Arity::kValue, ""},
    {"encoder_tensor_model_parallel_size", Arity::kValue, ""},
    {"experimental_attention_variant", Arity::kValue, ""},
    {"export_moe_imbalance_ratio", Arity::kSwitch, ""},
    {"external_cuda_graph", Arity::kSwitch, ""},
    {"flux_transpose_weight", Arity::kSwitch, ""},
    {"force_fp8_ctx", Arity::kSwitch, ""},
    {"fp16", Arity::kSwitch, ""},
    {"fp16_lm_cross_entropy", Arity::kSwitch, ""},
    {"fp32_residual_connection", Arity::kSwitch, ""},
    {"fp4", Arity::kValue, ""},
    {"fp4_param", Arity::kSwitch, ""},
    {"fp8_dot_product_attention", Arity::kSwitch, ""},
    {"fp8_multi_head_attention", Arity::kSwitch, ""},
    {"fused_residual_rmsnorm", Arity::kSwitch, ""},
    {"glu_linear_offset", Arity::kValue, ""},
    {"grad_comp", Arity::kSwitch, ""},
    {"heterogeneous_layers_config_encoded_json", Arity::kValue, ""},
    {"heterogeneous_layers_config_path", Arity::kValue, ""},
    {"hierarchical_context_parallel_sizes", Arity::kList, ""},
    {"hybrid_attention_ratio", Arity::kValue, ""},
    {"hybrid_context_parallel", Arity::kSwitch, ""},
    {"hybrid_layer_pattern", Arity::kValue, ""},
    {"hybrid_mlp_ratio", Arity::kValue, ""},
    {"hybrid_override_pattern", Arity::kValue, ""},
    {"init_model_with_meta_device", Arity::kSwitch, ""},
    {"is_hybrid_model", Arity::kSwitch, ""},
    {"kaimm_cp_offload_mode", Arity::kValue, "0"},
    {"kaimm_cuda_synchronize_level", Arity::kValue, "0 1"},
    {"kaimm_offload_activation_ratio", Arity::kValue, ""},
    {"kaimm_overlap_cp_slow_ctas", Arity::kValue, ""},
    {"kaimm_profile_analysis", Arity::kSwitch, ""},
    {"kaimm_recompute_mlp_activation_func", Arity::kSwitch, ""},
    {"kaimm_recompute_norm", Arity::kSwitch, ""},
    {"kitchen_config_file", Arity::kValue, ""},
    {"kitchen_recipe_number", Arity::kValue, ""},
    {"linear_attention_freq", Arity::kValue, ""},
    {"log_max_attention_logit", Arity::kSwitch, ""},
    {"max_seqlen_per_dp_cp_rank", Arity::kValue, ""},
    {"mla_down_proj_fusion", Arity::kSwitch, ""},
    {"model_parallel_size", Arity::kValue, ""},
    {"modelopt_enabled", Arity::kSwitch, ""},
    {"moe_apply_probs_on_input", Arity::kSwitch, ""},
    {"moe_enable_deepep", Arity::kSwitch, ""},
    {"moe_enable_routing_replay", Arity::kSwitch, ""},
    {"moe_extended_tp", Arity::kSwitch, ""},
    {"moe_input_jitter_eps", Arity::kValue, ""},
    {"moe_latent_size", Arity::kValue, ""},
    {"moe_layer_recompute", Arity::kSwitch, ""},
    {"moe_router_force_biased", Arity::kValue, ""},
    {"moe_router_padding_for_fp8", Arity::kSwitch, ""},
    {"moe_router_padding_for_quantization", Arity::kSwitch, ""},
    {"moe_use_legacy_grouped_gemm", Arity::kSwitch, ""},
    {"moe_z_loss_coeff", Arity::kValue, ""},
    {"nccl_ub", Arity::kSwitch, ""},
    {"no_rope_freq", Arity::kValue, ""},
    {"num_distributed_optimizer_instances", Arity::kValue, "1"},
    {"num_layers_to_build", Arity::kValue, ""},
    {"offload_optimizer_states", Arity::kSwitch, ""},
    {"onnx_safe", Arity::kValue, ""},
    {"openai_gelu", Arity::kSwitch, ""},
    {"optimizer", Arity::kValue, "adam"},
    {"optimizer_cpu_offload", Arity::kSwitch, ""},
    {"optimizer_cuda_graph", Arity::kSwitch, ""},
    {"overlap_param_gather_with_optimizer_step", Arity::kSwitch, ""},
    {"overlap_sp_ag", Arity::kSwitch, ""},
    {"overlap_sp_rs", Arity::kSwitch, ""},
    {"perform_rl_step", Arity::kSwitch, ""},
    {"pipe_sp_splits", Arity::kValue, "1"},
    {"pipeline_model_parallel_split_rank", Arity::kValue, ""},
    {"pipeline_parallel_aware_offloading_ratio", Arity::kValue, ""},
    {"pipeline_schedule_backend", Arity::kValue, "vanilla interleaved_1f1b"},
    {"qk_clip", Arity::kSwitch, ""},
    {"qk_l2_norm", Arity::kSwitch, ""},
    {"quick_geglu", Arity::kSwitch, ""},
    {"rampup_batch_size", Arity::kList, ""},
    {"recompute_activation_function_num_layers", Arity::kValue, ""},
    {"recompute_ffn", Arity::kSwitch, ""},
    {"recompute_in_advance", Arity::kSwitch, ""},
    {"recompute_in_bubble", Arity::kSwitch, ""},
    {"retro_add_retriever", Arity::kSwitch, ""},
    {"reuse_fp32_param", Arity::kSwitch, ""},
    {"reuse_grad_buf_for_mxfp8_param_ag", Arity::kSwitch, ""},
    {"rl_use_sequence_packing", Arity::kSwitch, ""},
    {"rms_norm", Arity::kSwitch, ""},
    {"schedule_method", Arity::kValue, "vanilla none None"},
    {"selective_recompute_offload_transformer_layer", Arity::kSwitch, ""},
    {"sft", Arity::kSwitch, ""},
    {"softmax_type", Arity::kValue, "vanilla"},
    {"spec", Arity::kList, ""},
    {"specify_layers", Arity::kList, ""},
    {"swap_attention", Arity::kSwitch, "",
     "one stream copies both ways and storages are emptied when the next layer begins; "
     "fine_grained_activation_offloading of the same modules is modelled"},
    {"sync_free_moe", Arity::kSwitch, ""},
    {"te_precision_config_file", Arity::kValue, ""},
    {"transformer_impl", Arity::kValue, "transformer_engine"},
    {"turbo_sync_free_moe_stage", Arity::kValue, ""},
    {"use_custom_fsdp", Arity::kSwitch, ""},
    {"use_fast_rope", Arity::kSwitch, ""},
    {"use_fused_weighted_squared_relu", Arity::kSwitch, ""},
    {"use_kitchen_attention", Arity::kSwitch, ""},
    {"use_legacy_models", Arity::kSwitch, ""},
    {"use_megatron_fsdp", Arity::kSwitch, ""},
    {"use_optimizer_feature", Arity::kSwitch, ""},
    {"use_primus_deepep", Arity::kSwitch, ""},
    {"use_primus_fused_act_with_probs", Arity::kSwitch, ""},
    {"use_primus_grouped_mlp", Arity::kSwitch, ""},
    {"use_primus_moe_permute_fusion", Arity::kSwitch, ""},
    {"use_primus_topk_router", Arity::kSwitch, ""},
    {"use_ring_exchange_p2p", Arity::kSwitch, ""},
    {"use_te_activation_func", Arity::kSwitch, ""},
    {"use_torch_fsdp2", Arity::kSwitch, ""},
    {"use_tp_pp_dp_mapping", Arity::kSwitch, ""},
    {"use_vwn", Arity::kSwitch, ""},
    {"variable_seq_lengths", Arity::kSwitch, ""},
    {"vision_pretraining", Arity::kSwitch, ""},
    {"vocab_extra_ids", Arity::kValue, ""},
    {"window_size", Arity::kValue, ""},
    {"yaml_cfg", Arity::kValue, ""},
};

// Flags that are not spelled like the name they set. `--no-x` and `--disable-x` follow a rule.
struct Spelling {
  std::string_view flag;
  std::string_view name;
  std::string_view value;  // what the bare flag sets; "": the flag takes a value
};

constexpr Spelling kSpellings[] = {
    {"bert_no_binary_head", "bert_binary_head", "False"},
    {"dist_ckpt_format", "dist_ckpt_format_deprecated", ""},
    {"fp4_format", "fp4", ""},
    {"fp4_param_gather", "fp4_param", "True"},
    {"fp8_format", "fp8", ""},
    {"microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage", ""},
    {"muon_no_split_qkv", "muon_split_qkv", "False"},
    {"no_barrier_with_level_1_timing", "barrier_with_L1_time", "False"},
    {"no_initialization", "perform_initialization", "False"},
    {"no_one_logger", "enable_one_logger", "False"},
    {"no_overlap_p2p_communication", "overlap_p2p_comm", "False"},
    {"no_position_embedding", "add_position_embedding", "False"},
    {"no_rope_fusion", "apply_rope_fusion", "False"},
    {"disable_bias_linear", "add_bias_linear", "False"},
    {"overlap_p2p_communication_warmup_flush", "overlap_p2p_comm_warmup_flush", "True"},
    {"persistent_save_interval", "save_interval", ""},
    {"recompute_activations", "recompute_granularity", "selective"},
    {"retro_no_verify_neighbor_count", "retro_verify_neighbor_count", "False"},
    {"torch_fsdp2_no_reshard_after_forward", "torch_fsdp2_reshard_after_forward", "False"},
    {"use_mcore_models", "deprecated_use_mcore_models", "True"},
    {"use_nccl_ub", "nccl_ub", "True"},
    {"bgl2_pipeline_schedule_backend", "pipeline_schedule_backend", ""},
    {"bgl2_no_offload_pin_memory", "bgl2_offload_pin_memory", "False"},
    {"activation_offload_ratio", "bgl2_activation_offload_ratio", ""},
    {"activation_offload_threshold", "bgl2_activation_offload_threshold", ""},
    {"per_batch_offload_size", "bgl2_per_batch_offload_size", ""},
    {"activation_offload_stages", "bgl2_activation_offload_stages", ""},
    {"enable_pp_warmup_forward_backward", "bgl2_enable_pp_warmup_forward_backward", "True"},
    {"bgl2_report_memory_every_iteration", "report_memory_every_iteration", "True"},
    {"bgl2_export_moe_imbalance_ratio", "export_moe_imbalance_ratio", "True"},
};

using Table = std::map<std::string, ArgumentInfo, std::less<>>;

void add_words(Table& table, std::string_view words, ArgumentClass kind, Arity arity) {
  constexpr std::string_view kSpace = " \n";
  for (std::size_t at = words.find_first_not_of(kSpace); at != std::string_view::npos;
       at = words.find_first_not_of(kSpace, at)) {
    const std::size_t end = std::min(words.find_first_of(kSpace, at), words.size());
    table.emplace(words.substr(at, end - at), ArgumentInfo{kind, arity, "", ""});
    at = end;
  }
}

const Table& table() {
  static const Table kTable = [] {
    Table t;
    add_words(t, kModelledSwitches, ArgumentClass::kModelled, Arity::kSwitch);
    add_words(t, kModelledValues, ArgumentClass::kModelled, Arity::kValue);
    add_words(t, kModelledLists, ArgumentClass::kModelled, Arity::kList);
    add_words(t, kIrrelevantSwitches, ArgumentClass::kIrrelevant, Arity::kSwitch);
    add_words(t, kIrrelevantValues, ArgumentClass::kIrrelevant, Arity::kValue);
    add_words(t, kIrrelevantLists, ArgumentClass::kIrrelevant, Arity::kList);
    for (const NotModelled& n : kNotModelled) {
      t.emplace(n.name, ArgumentInfo{ArgumentClass::kNotModelled, n.arity, n.accepted, n.reason});
    }
    return t;
  }();
  return kTable;
}

bool is_switch(std::string_view name) {
  const ArgumentInfo* info = find_argument(name);
  return info != nullptr && info->arity == Arity::kSwitch;
}

}  // namespace

bool ArgumentInfo::accepts(std::string_view value) const {
  if (accepted.empty()) {
    constexpr std::array<std::string_view, 8> kOff = {"",  "None", "none", "False",
                                                      "0", "0.0",  "[]",   "false"};
    return std::find(kOff.begin(), kOff.end(), value) != kOff.end();
  }
  for (std::size_t at = 0; at < accepted.size();) {
    const std::size_t end = std::min(accepted.find(' ', at), accepted.size());
    if (accepted.substr(at, end - at) == value) return true;
    at = end + 1;
  }
  return false;
}

std::string ArgumentInfo::accepted_text() const {
  if (!accepted.empty()) {
    std::string list;
    for (const char c : accepted) list += c == ' ' ? std::string(", ") : std::string(1, c);
    return list + " (anything else is not modelled)";
  }
  const std::string why = reason.empty() ? "" : ": " + std::string(reason);
  return (arity == Arity::kSwitch ? "False (not modelled" : "None (not modelled") + why + ")";
}

const ArgumentInfo* find_argument(std::string_view name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : &it->second;
}

std::vector<std::string> known_arguments() {
  std::vector<std::string> names;
  for (const auto& [name, info] : table()) names.push_back(name);
  return names;
}

FlagMeaning resolve_flag(std::string_view flag) {
  std::string name(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  std::replace(name.begin(), name.end(), '-', '_');
  for (const Spelling& s : kSpellings) {
    if (s.flag == name) {
      return {std::string(s.name), true, s.value.empty() ? Arity::kValue : Arity::kSwitch,
              std::string(s.value)};
    }
  }
  if (const ArgumentInfo* info = find_argument(name)) return {name, true, info->arity, "True"};
  for (const std::string_view prefix : {"no_", "disable_"}) {
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string positive = name.substr(prefix.size());
    for (const std::string& candidate : {positive, "enable_" + positive}) {
      if (is_switch(candidate)) return {candidate, true, Arity::kSwitch, "False"};
    }
  }
  return {name, false, Arity::kList, "True"};
}

}  // namespace tidemark
