"""Tiny configurations and inputs of the transformers in diffusers, for families.py and the tests.

``FAMILIES[class name]`` is a function that returns (arguments of the class, arguments of its forward). All numbers are
small: two heads of 16, one layer of each kind, a few tokens. Floating-point inputs are cast to the model's dtype,
except for those in ``KEEP``. ``FIXED`` names inputs without gradients: those of a time are a thousand times larger than
all others.
"""

import torch

KEEP = "image_rotary_emb", "rotary_embedding", "video_rotary_emb", "fps"
FIXED = "timestep", "timesteps", "timestep_r", "r_timestep", "t", "guidance", "decoder_noise_time", *KEEP


def r(*shape):
    return torch.randn(*shape)


def t(*values):
    return torch.tensor(values)


def ones(*shape):
    return torch.ones(*shape, dtype=torch.long)


def grid(frames, height, width, axes=3):
    """(tokens, axes) positions, as float."""
    ids = torch.stack(torch.meshgrid(*(torch.arange(n) for n in (frames, height, width)), indexing="ij"), -1)
    ids = ids.reshape(-1, 3)
    return torch.nn.functional.pad(ids, (0, axes - 3)).float() if axes > 3 else ids.float()


HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}


def ace_step():
    config = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config |= {"head_dim": 16, "in_channels": 24, "audio_acoustic_hidden_dim": 8, "sliding_window": 4}
    return config, {
        "hidden_states": r(2, 8, 8),
        "timestep": t(0.25, 0.5),
        "timestep_r": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 32),
        "context_latents": r(2, 8, 16),
    }


def aura_flow():
    config = dict(sample_size=8, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, **HEADS)
    config |= {"joint_attention_dim": 24, "caption_projection_dim": 32, "pos_embed_max_size": 64}
    return config, {"hidden_states": r(2, 4, 8, 8), "encoder_hidden_states": r(2, 5, 24), "timestep": t(0.25, 0.5)}


def cogvideox(**more):
    config = dict(
        in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=24, num_layers=1, sample_width=8, **HEADS
    )
    config |= dict(sample_height=8, sample_frames=9, max_text_seq_length=5, **more)
    return config, {"hidden_states": r(2, 3, 4, 8, 8), "encoder_hidden_states": r(2, 5, 24), "timestep": t(3, 6)}


def consisid():
    return cogvideox()


def dit():
    config = dict(in_channels=4, out_channels=8, num_layers=1, sample_size=8, num_embeds_ada_norm=10, **HEADS)
    return config, {"hidden_states": r(2, 4, 8, 8), "timestep": t(3, 6), "class_labels": t(1, 2)}


def hunyuan_dit():
    config = dict(
        in_channels=4, patch_size=2, sample_size=8, hidden_size=32, num_layers=2, cross_attention_dim=24, **HEADS
    )
    config |= {"cross_attention_dim_t5": 16, "pooled_projection_dim": 8, "text_len": 5, "text_len_t5": 6}
    config |= {"use_style_cond_and_image_meta_size": False}
    rope = torch.outer(torch.arange(16.0), torch.rand(8)).repeat_interleave(2, -1)
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timestep": t(3.0, 6.0),
        "encoder_hidden_states": r(2, 5, 24),
        "text_embedding_mask": ones(2, 5),
        "encoder_hidden_states_t5": r(2, 6, 16),
        "text_embedding_mask_t5": ones(2, 6),
        "image_rotary_emb": (rope.cos(), rope.sin()),
    }


def latte():
    config = dict(
        in_channels=4, out_channels=8, sample_size=8, patch_size=2, num_layers=1, caption_channels=24, **HEADS
    )
    config |= {"cross_attention_dim": 32, "video_length": 2, "num_embeds_ada_norm": 10, "norm_type": "ada_norm_single"}
    config |= {"norm_elementwise_affine": False}
    return config, {"hidden_states": r(2, 4, 2, 8, 8), "timestep": t(3, 6), "encoder_hidden_states": r(2, 5, 24)}


def lumina_next():
    from diffusers.models.embeddings import get_2d_rotary_pos_embed_lumina

    config = {
        "sample_size": 8,
        "in_channels": 4,
        "hidden_size": 32,
        "num_layers": 1,
        "num_attention_heads": 2,
        "num_kv_heads": 1,
    }
    config |= {"multiple_of": 16, "cross_attention_dim": 24}
    rope = get_2d_rotary_pos_embed_lumina(16, 8, 8, linear_factor=1.0, ntk_factor=1.0)
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_mask": ones(2, 5).bool(),
        "image_rotary_emb": rope,
        "cross_attention_kwargs": {},
    }


def music_depth_decoder():
    config = {
        "hidden_size": 32,
        "num_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "audio_vocab_size": 16,
    }
    return config, {"inputs_embeds": r(2, 4, 32)}


def pixart():
    config = dict(in_channels=4, out_channels=8, num_layers=1, cross_attention_dim=32, sample_size=8, **HEADS)
    config |= {"caption_channels": 24, "use_additional_conditions": False}
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(3, 6),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def prior():
    config = dict(num_layers=1, embedding_dim=8, num_embeddings=5, additional_embeddings=4, **HEADS)
    return config, {
        "hidden_states": r(2, 8),
        "timestep": t(3, 6),
        "proj_embedding": r(2, 8),
        "encoder_hidden_states": r(2, 5, 8),
    }


def sana():
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "num_cross_attention_heads": 2,
        "cross_attention_head_dim": 16,
    }
    config |= dict(cross_attention_dim=32, caption_channels=24, sample_size=8, **HEADS)
    return config, {"hidden_states": r(2, 4, 8, 8), "encoder_hidden_states": r(2, 5, 24), "timestep": t(3, 6)}


def stable_audio():
    config = dict(sample_size=8, in_channels=4, out_channels=4, num_layers=1, num_key_value_attention_heads=2, **HEADS)
    config |= {
        "cross_attention_dim": 32,
        "time_proj_dim": 8,
        "global_states_input_dim": 16,
        "cross_attention_input_dim": 24,
    }
    rope = torch.outer(torch.arange(9.0), torch.rand(4)).repeat(1, 2)
    return config, {
        "hidden_states": r(2, 4, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "global_hidden_states": r(2, 1, 16),
        "rotary_embedding": (rope.cos(), rope.sin()),
    }


def t5_film():
    config = {
        "input_dims": 8,
        "targets_length": 6,
        "d_model": 32,
        "num_layers": 1,
        "num_heads": 2,
        "d_kv": 16,
        "d_ff": 48,
    }
    return config, {
        "encodings_and_masks": [(r(2, 5, 32), torch.ones(2, 5))],
        "decoder_input_tokens": r(2, 6, 8),
        "decoder_noise_time": t(0.25, 0.5),
    }


def transformer_2d():
    config = dict(in_channels=32, num_layers=1, norm_num_groups=4, cross_attention_dim=24, **HEADS)
    return config, {"hidden_states": r(2, 32, 4, 4), "encoder_hidden_states": r(2, 5, 24)}


def temporal():
    config = dict(in_channels=32, num_layers=1, norm_num_groups=4, **HEADS)
    return config, {"hidden_states": r(4, 32, 4, 4), "num_frames": 2}


def allegro():
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "cross_attention_dim": 36,
        "sample_height": 8,
        "sample_width": 8,
    }
    config |= {"sample_frames": 2, "caption_channels": 24, "num_attention_heads": 2, "attention_head_dim": 18}
    positions = grid(2, 4, 4).long().T
    rope = tuple((torch.rand(n, 6), torch.rand(n, 6)) for n in (2, 4, 4))
    return config, {
        "hidden_states": r(1, 4, 2, 8, 8),
        "encoder_hidden_states": r(1, 5, 24),
        "timestep": t(3),
        "attention_mask": ones(1, 2, 8, 8).float(),
        "encoder_attention_mask": torch.ones(1, 5),
        "image_rotary_emb": (rope, tuple(p[None] for p in positions)),
    }


WAN = dict(in_channels=4, out_channels=4, text_dim=24, freq_dim=8, ffn_dim=48, num_layers=2, **HEADS)


def wan(**more):
    config = dict(WAN, rope_max_seq_len=32, **more)
    return config, {"hidden_states": r(2, 4, 2, 8, 8), "timestep": t(3, 6), "encoder_hidden_states": r(2, 5, 24)}


def chronoedit():
    config, inputs = wan(image_dim=8, added_kv_proj_dim=32)
    return config, inputs | {"encoder_hidden_states_image": r(2, 257, 8)}


def anyflow():
    config, inputs = wan()
    times = {"timestep": t(3.0, 6.0)[:, None].expand(2, 2), "r_timestep": t(1.0, 2.0)[:, None].expand(2, 2)}
    return config, inputs | times | {"hidden_states": inputs["hidden_states"].transpose(1, 2).contiguous()}


def anyflow_far():
    config, inputs = anyflow()
    config |= {"chunk_partition": (1, 1), "full_chunk_limit": 2}
    return config, inputs | {"chunk_partition": [1, 1]}


def skyreels():
    return wan()


def wan_vace():
    config, inputs = wan(vace_layers=[0, 1], vace_in_channels=6)
    return config, inputs | {"control_hidden_states": r(2, 6, 2, 8, 8)}


def wan_animate():
    config, inputs = wan(latent_channels=4, image_dim=8, added_kv_proj_dim=32, motion_style_dim=8, motion_dim=4)
    config |= {"in_channels": 12, "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_encoder_size": 16}
    config |= {"motion_encoder_dim": 8, "face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2}
    config |= {"inject_face_latents_blocks": 2}
    inputs["hidden_states"] = r(2, 12, 3, 8, 8)
    return config, inputs | {
        "encoder_hidden_states_image": r(2, 257, 8),
        "pose_hidden_states": r(2, 4, 2, 8, 8),
        "face_pixel_values": r(2, 3, 5, 16, 16),
    }


def helios():
    config, inputs = wan(rope_dim=(4, 6, 6), has_multi_term_memory_patch=False, guidance_cross_attn=False)
    config.pop("rope_max_seq_len")
    config |= {"zero_history_timestep": False}
    return config, inputs | {"indices_hidden_states": torch.arange(2)[None].expand(2, 2)}


FLUX = dict(in_channels=8, num_layers=1, num_single_layers=1, joint_attention_dim=24, axes_dims_rope=(4, 6, 6), **HEADS)


def flux(axes=3, **more):
    config = dict(FLUX, **more)
    if axes == 4:
        config["axes_dims_rope"] = (4, 4, 4, 4)
    return config, {
        "hidden_states": r(2, 8, 8),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(0.25, 0.5),
        "img_ids": grid(1, 2, 4, axes),
        "txt_ids": torch.zeros(5, axes),
    }


def flux1():
    config, inputs = flux(pooled_projection_dim=8)
    return config, inputs | {"pooled_projections": r(2, 8)}


def flux2():
    config, inputs = flux(4, timestep_guidance_channels=8)
    return config, inputs | {"guidance": t(1.0, 2.0)}


def flux3():
    config, inputs = flux(4, timestep_channels=8, cond_in_channels=8)
    return config, inputs


def bria():
    config, inputs = flux()
    return config, inputs


def bria_fibo():
    config, inputs = flux(text_encoder_dim=12)
    return config, inputs | {"text_encoder_layers": [r(2, 5, 12) for _ in range(2)]}


def bria_fibo2():
    config = {
        "in_channels": 4,
        "dim": 32,
        "n_layers": 2,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "cap_feat_dim": 24,
        "injection_layer_ids": (1,),
    }
    config |= {
        "perceiver_num_layers": 1,
        "min_num_gist_tokens": 4,
        "max_num_gist_tokens": 8,
        "gist_step": 4,
        "gist_min_text_len": 4,
    }
    config |= {"gist_max_text_len": 16, "axes_dims": (4, 6, 6), "axes_lens": (64, 16, 16)}
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_attention_mask": ones(2, 5).bool(),
    }


def chroma():
    return flux(approximator_num_channels=8, approximator_hidden_dim=16, approximator_layers=1)


def longcat_image():
    return flux(pooled_projection_dim=24)


def ovis():
    return flux(out_channels=8)


def cogview3():
    config = dict(
        in_channels=4, out_channels=4, num_layers=1, text_embed_dim=24, time_embed_dim=8, condition_dim=4, **HEADS
    )
    config |= {"pos_embed_max_size": 8, "sample_size": 8}
    size = torch.tensor([[8.0, 8.0]] * 2)
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(3, 6),
        "original_size": size,
        "target_size": size,
        "crop_coords": size * 0,
    }


def cogview4():
    config, inputs = cogview3()
    return config | {"rope_axes_dim": (8, 8)}, inputs


def glm_image():
    config, inputs = cogview3()
    for name in ("pos_embed_max_size", "sample_size"):
        config.pop(name)
    inputs.pop("original_size")
    config |= {"prior_vq_quantizer_codebook_size": 16}
    return config, inputs | {
        "prior_token_id": torch.arange(16)[None].expand(2, 16),
        "prior_token_drop": ones(2, 16).bool(),
    }


def cosmos():
    config = dict(
        in_channels=4, out_channels=4, num_layers=1, text_embed_dim=24, adaln_lora_dim=4, max_size=(4, 16, 16), **HEADS
    )
    config |= {"concat_padding_mask": False}  # resizing the mask needs torchvision
    return config, {
        "hidden_states": r(2, 4, 2, 8, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "fps": 16,
    }


def easyanimate():
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "patch_size": 2,
        "sample_width": 8,
        "sample_height": 8,
        "num_layers": 2,
        "mmdit_layers": 1,
    }
    config |= dict(time_embed_dim=8, text_embed_dim=24, add_noise_in_inpaint_model=False, **HEADS)
    return config, {"hidden_states": r(2, 4, 2, 8, 8), "timestep": t(3, 6), "encoder_hidden_states": r(2, 5, 24)}


def ernie():
    config = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_layers": 1,
        "ffn_hidden_size": 48,
        "in_channels": 4,
        "out_channels": 4,
    }
    config |= {"text_in_dim": 24, "rope_axes_dim": (4, 6, 6)}
    return config, {"hidden_states": r(2, 4, 4, 4), "timestep": t(3, 6), "text_bth": r(2, 5, 24), "text_lens": t(5, 3)}


def hidream():
    config = {
        "patch_size": 2,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "caption_channels": [24, 20],
    }
    config |= dict(text_emb_dim=8, num_routed_experts=2, num_activated_experts=1, axes_dims_rope=(4, 6, 6), **HEADS)
    config |= {"max_resolution": (8, 8), "llama_layers": [0, 1], "force_inference_output": True}
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timesteps": t(3, 6),
        "encoder_hidden_states_t5": r(2, 5, 24),
        "encoder_hidden_states_llama3": r(2, 2, 5, 20),
        "pooled_embeds": r(2, 8),
    }


HUNYUAN = {
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_refiner_layers": 1,
    "text_embed_dim": 24,
}
HUNYUAN |= HEADS


def hunyuan_video():
    config = dict(HUNYUAN, pooled_projection_dim=8, rope_axes_dim=(4, 6, 6))
    return config, {
        "hidden_states": r(2, 4, 2, 8, 8),
        "timestep": t(3, 6),
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_attention_mask": ones(2, 5),
        "pooled_projections": r(2, 8),
        "guidance": t(1.0, 2.0),
    }


def hunyuan_video15():
    config = dict(HUNYUAN, text_embed_2_dim=12, image_embed_dim=8, rope_axes_dim=(4, 6, 6), target_size=8)
    config.pop("num_single_layers")
    return config, {
        "hidden_states": r(1, 4, 2, 8, 8),
        "timestep": t(3.0),
        "encoder_hidden_states": r(1, 5, 24),
        "encoder_attention_mask": ones(1, 5),
        "encoder_hidden_states_2": r(1, 4, 12),
        "encoder_attention_mask_2": ones(1, 4),
        "image_embeds": r(1, 3, 8),
    }


def framepack():
    config, inputs = hunyuan_video()
    config |= {"has_image_proj": True, "image_proj_dim": 8, "has_clean_x_embedder": True}
    return config, inputs | {"image_embeds": r(2, 3, 8), "indices_latents": t(8, 9)}


def hunyuan_image():
    config = dict(HUNYUAN, text_embed_2_dim=12, rope_axes_dim=(8, 8))
    return config, {
        "hidden_states": r(1, 4, 4, 4),
        "timestep": t(3.0),
        "encoder_hidden_states": r(1, 5, 24),
        "encoder_attention_mask": ones(1, 5),
        "encoder_hidden_states_2": r(1, 4, 12),
        "encoder_attention_mask_2": ones(1, 4),
    }


def ideogram():
    config = {
        "in_channels": 4,
        "num_layers": 1,
        "intermediate_size": 48,
        "adaln_dim": 8,
        "llm_features_dim": 24,
        "mrope_section": (4, 2, 2),
    }
    config |= HEADS
    positions = grid(1, 3, 4).long()[None].expand(2, 12, 3)
    indicator = torch.tensor([[3] * 4 + [2] * 8] * 2)
    return config, {
        "hidden_states": r(2, 12, 4),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 12, 24),
        "position_ids": positions,
        "segment_ids": ones(2, 12),
        "indicator": indicator,
    }


def joyimage():
    config = {
        "in_channels": 4,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "text_dim": 24,
        "num_layers": 1,
        "rope_dim_list": [4, 6, 6],
    }
    return config, {"hidden_states": r(2, 4, 2, 8, 8), "timestep": t(3, 6), "encoder_hidden_states": r(2, 5, 24)}


def kandinsky5():
    config = {
        "in_visual_dim": 4,
        "in_text_dim": 24,
        "in_text_dim2": 8,
        "time_dim": 8,
        "out_visual_dim": 4,
        "model_dim": 32,
        "ff_dim": 48,
    }
    config |= {"num_text_blocks": 1, "num_visual_blocks": 1, "axes_dims": (4, 6, 6)}
    return config, {
        "hidden_states": r(1, 2, 8, 8, 4),
        "encoder_hidden_states": r(1, 5, 24),
        "timestep": t(256.0),
        "pooled_projections": r(1, 8),
        "visual_rope_pos": [torch.arange(n) for n in (2, 4, 4)],
        "text_rope_pos": torch.arange(5),
    }


def kandinsky6():
    config, inputs = kandinsky5()
    config |= {"visual_cond": False, "in_audio_dim": 4, "out_audio_dim": 4}
    inputs.pop("text_rope_pos")
    return config, inputs


def kandinsky6_sr():
    config = {
        "in_visual_dim": 4,
        "out_visual_dim": 4,
        "time_dim": 8,
        "model_dim": 32,
        "ff_dim": 48,
        "num_visual_blocks": 1,
        "axes_dims": (4, 6, 6),
    }
    return config, {"hidden_states": r(1, 2, 8, 8, 9), "timestep": t(256.0)}


def krea2():
    config = dict(
        in_channels=4, num_layers=1, num_key_value_heads=1, intermediate_size=48, timestep_embed_dim=8, **HEADS
    )
    config |= {
        "text_hidden_dim": 24,
        "num_text_layers": 2,
        "text_num_attention_heads": 2,
        "text_num_key_value_heads": 1,
    }
    config |= {
        "text_intermediate_size": 16,
        "num_layerwise_text_blocks": 1,
        "num_refiner_text_blocks": 1,
        "axes_dims_rope": (4, 6, 6),
    }
    return config, {
        "hidden_states": r(2, 8, 4),
        "encoder_hidden_states": r(2, 5, 2, 24),
        "timestep": t(0.25, 0.5),
        "position_ids": torch.cat([torch.zeros(5, 3), grid(1, 2, 4)]),
    }


def longcat_audio():
    config = {"dit_dim": 32, "dit_depth": 1, "dit_heads": 2, "dit_text_dim": 24, "latent_dim": 4}
    return config, {
        "hidden_states": r(2, 8, 4),
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_attention_mask": ones(2, 5).bool(),
        "timestep": t(0.25, 0.5),
        "attention_mask": ones(2, 8).bool(),
        "latent_cond": r(2, 8, 4),
    }


def ltx():
    config = dict(in_channels=4, out_channels=4, cross_attention_dim=32, num_layers=1, caption_channels=24, **HEADS)
    return config, {
        "hidden_states": r(2, 32, 4),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(3, 6),
        "encoder_attention_mask": ones(2, 5),
        "num_frames": 2,
        "height": 4,
        "width": 4,
    }


def ltx2():
    config, inputs = ltx()
    config |= {
        "audio_in_channels": 4,
        "audio_out_channels": 4,
        "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 8,
    }
    config |= {"audio_cross_attention_dim": 16}
    inputs |= {"audio_hidden_states": r(2, 9, 4), "audio_encoder_hidden_states": r(2, 5, 24), "audio_num_frames": 9}
    return config, inputs | {"audio_encoder_attention_mask": ones(2, 5), "timestep": t(3.0, 6.0)}


def sana_wm_refiner():
    config, inputs = ltx2()
    keep = ("hidden_states", "encoder_hidden_states", "timestep", "encoder_attention_mask")
    rope = torch.outer(torch.arange(32.0), torch.rand(16)).repeat_interleave(2, -1)[None].expand(2, -1, -1)
    return config, {k: inputs[k] for k in keep} | {"video_rotary_emb": (rope.cos(), rope.sin())}


def lumina2():
    config = {
        "sample_size": 8,
        "in_channels": 4,
        "hidden_size": 32,
        "num_layers": 1,
        "num_refiner_layers": 1,
        "num_attention_heads": 2,
    }
    config |= {
        "num_kv_heads": 1,
        "multiple_of": 16,
        "axes_dim_rope": (4, 6, 6),
        "axes_lens": (32, 16, 16),
        "cap_feat_dim": 24,
    }
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_attention_mask": ones(2, 5).bool(),
    }


def minimax_h3():
    config = dict(
        hidden_size=32, num_layers=1, num_refiner_layers=1, ffn_dim=48, in_channels=4, audio_in_channels=4, **HEADS
    )
    config |= {"text_dim": 24, "freq_dim": 8, "time_embed_hidden_dim": 16, "time_embed_dim": 12, "rope_freq_dim": 2}
    video, audio, text = torch.arange(8), torch.arange(8, 12), torch.arange(12, 17)
    return config, {
        "hidden_states": r(1, 8, 16),
        "audio_hidden_states": r(1, 4, 4),
        "encoder_hidden_states": r(1, 5, 24),
        "timestep": t(0.25, 0.5),
        "timestep_indices": torch.zeros(17, dtype=torch.long),
        "token_tags": torch.zeros(17, dtype=torch.long),
        "position_ids": torch.cat([grid(1, 2, 4), torch.zeros(9, 3)]),
        "video_indices": video,
        "audio_indices": audio,
        "text_indices": text,
    }


def minimax_music():
    config = dict(
        in_channels=4, condition_dim=24, num_layers=1, ff_inner_dim=48, rotary_dim=8, fourier_embedding_dim=8, **HEADS
    )
    return config, {"hidden_states": r(2, 4, 8), "timestep": t(0.25, 0.5), "encoder_hidden_states": r(2, 8, 24)}


def mochi():
    config = dict(num_layers=2, pooled_projection_dim=16, in_channels=4, text_embed_dim=24, time_embed_dim=8, **HEADS)
    config |= {"max_sequence_length": 8}
    return config, {
        "hidden_states": r(2, 4, 2, 8, 8),
        "encoder_hidden_states": r(2, 8, 24),
        "timestep": t(3, 6),
        "encoder_attention_mask": ones(2, 8).bool(),
    }


def motif():
    config = dict(in_channels=4, out_channels=4, num_layers=1, num_single_layers=2, text_embed_dim=24, **HEADS)
    config |= {"rope_axes_dim": (4, 6, 6), "num_decoder_layers": 1}
    return config, {"hidden_states": r(2, 4, 2, 8, 8), "timestep": t(3, 6), "encoder_hidden_states": r(2, 5, 24)}


def nucleus():
    config = dict(in_channels=16, out_channels=4, num_layers=2, num_key_value_heads=1, joint_attention_dim=24, **HEADS)
    config |= {
        "axes_dims_rope": (4, 6, 6),
        "num_experts": 2,
        "moe_intermediate_dim": 16,
        "capacity_factors": [2.0, 2.0],
    }
    config |= {"dense_moe_strategy": "leave_first_block_dense"}
    return config, {
        "hidden_states": r(2, 8, 16),
        "img_shapes": [(1, 2, 4)] * 2,
        "encoder_hidden_states": r(2, 5, 24),
        "encoder_hidden_states_mask": ones(2, 5).bool(),
        "timestep": t(0.25, 0.5),
    }


def omnigen():
    config = {
        "in_channels": 4,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    }
    config |= {"num_layers": 1, "pad_token_id": 0, "vocab_size": 16, "time_step_dim": 8, "pos_embed_max_size": 8}
    config |= {"rope_scaling": {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8}}
    length = 5 + 1 + 16
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "timestep": t(0.25, 0.5),
        "input_ids": ones(2, 5),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": ones(2, length, length),
        "position_ids": torch.arange(length)[None].expand(2, -1),
    }


def prx():
    config = {"in_channels": 4, "context_in_dim": 24, "hidden_size": 32, "num_heads": 2, "depth": 1, "axes_dim": [8, 8]}
    return config, {"hidden_states": r(2, 4, 8, 8), "timestep": t(0.25, 0.5), "encoder_hidden_states": r(2, 5, 24)}


def qwenimage():
    config = dict(
        in_channels=16, out_channels=4, num_layers=1, joint_attention_dim=24, axes_dims_rope=(4, 6, 6), **HEADS
    )
    return config, {
        "hidden_states": r(2, 8, 16),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states_mask": ones(2, 5).bool(),
        "img_shapes": [[(1, 2, 4)]] * 2,
    }


def qwenimage21():
    config = dict(in_channels=4, out_channels=4, num_layers=1, context_in_dim=24, axes_dims_rope=(4, 6, 6), **HEADS)
    mask = torch.cat([torch.zeros(2, 5), torch.ones(2, 2)], 1).bool()  # a slot stands for four tokens
    return config, {
        "hidden_states": r(2, 8, 4),
        "encoder_hidden_states": r(2, 5, 24),
        "timestep": t(0.25, 0.5),
        "img_mask": mask,
        "img_shapes": [[(1, 2, 4)]] * 2,
        "encoder_hidden_states_mask": ones(2, 5).bool(),
    }


def sana_video():
    config, inputs = sana()
    config |= {"rope_max_seq_len": 32}
    return config, inputs | {"hidden_states": r(2, 4, 2, 8, 8)}


def sana_wm():
    config = {
        "in_channels": 4,
        "num_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "linear_head_dim": 16,
        "caption_channels": 24,
    }
    config |= {"mlp_ratio": 2.0, "chunk_plucker_channels": 6, "chunk_plucker_post_attn_blocks": 1, "image_size": 8}
    return config, {
        "hidden_states": r(1, 4, 2, 4, 4),
        "timestep": t(3.0)[None, None].expand(1, 1, 2),
        "encoder_hidden_states": r(1, 1, 5, 24),
        "mask": ones(1, 5),
    }


def sd3():
    config = dict(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        joint_attention_dim=24,
        pos_embed_max_size=8,
        **HEADS,
    )
    config |= {
        "caption_projection_dim": 32,
        "pooled_projection_dim": 16,
        "dual_attention_layers": (0,),
        "qk_norm": "rms_norm",
    }
    return config, {
        "hidden_states": r(2, 4, 8, 8),
        "encoder_hidden_states": r(2, 5, 24),
        "pooled_projections": r(2, 16),
        "timestep": t(3, 6),
    }


def stable_audio3():
    config = {
        "io_channels": 4,
        "embed_dim": 64,
        "depth": 1,
        "num_heads": 2,
        "cond_token_dim": 24,
        "global_cond_dim": 12,
        "num_memory_tokens": 2,
    }
    config |= {"local_add_cond_dim": 5, "timestep_features_dim": 8}
    return config, {
        "hidden_states": r(2, 4, 8),
        "timestep": t(0.25, 0.5),
        "encoder_hidden_states": r(2, 5, 24),
        "global_hidden_states": r(2, 12),
        "local_add_cond": r(2, 5, 8),
    }


def z_image():
    config = {
        "in_channels": 4,
        "dim": 32,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": 24,
    }
    config |= {"axes_dims": [4, 6, 6], "axes_lens": [128, 16, 16]}
    return config, {"x": [r(4, 1, 8, 8) for _ in range(2)], "t": t(0.25, 0.5), "cap_feats": [r(5, 24), r(7, 24)]}


def dreamlite():
    config = dict(
        in_channels=32, num_layers=1, norm_num_groups=4, cross_attention_dim=24, use_linear_projection=True, **HEADS
    )
    return config, {"hidden_states": r(2, 32, 4, 4), "encoder_hidden_states": r(2, 5, 24)}


FAMILIES = {
    "AceStepTransformer1DModel": ace_step,
    "AllegroTransformer3DModel": allegro,
    "AnyFlowFARTransformer3DModel": anyflow_far,
    "AnyFlowTransformer3DModel": anyflow,
    "AuraFlowTransformer2DModel": aura_flow,
    "BriaFibo2Transformer2DModel": bria_fibo2,
    "BriaFiboTransformer2DModel": bria_fibo,
    "BriaTransformer2DModel": bria,
    "ChromaTransformer2DModel": chroma,
    "ChronoEditTransformer3DModel": chronoedit,
    "CogVideoXTransformer3DModel": cogvideox,
    "CogView3PlusTransformer2DModel": cogview3,
    "CogView4Transformer2DModel": cogview4,
    "ConsisIDTransformer3DModel": consisid,
    "CosmosTransformer3DModel": cosmos,
    "DiTTransformer2DModel": dit,
    "DreamLiteTransformer2DModel": dreamlite,
    "EasyAnimateTransformer3DModel": easyanimate,
    "ErnieImageTransformer2DModel": ernie,
    "Flux2Transformer2DModel": flux2,
    "Flux3Transformer2DModel": flux3,
    "FluxTransformer2DModel": flux1,
    "GlmImageTransformer2DModel": glm_image,
    "HeliosTransformer3DModel": helios,
    "HiDreamImageTransformer2DModel": hidream,
    "HunyuanDiT2DModel": hunyuan_dit,
    "HunyuanImageTransformer2DModel": hunyuan_image,
    "HunyuanVideo15Transformer3DModel": hunyuan_video15,
    "HunyuanVideoFramepackTransformer3DModel": framepack,
    "HunyuanVideoTransformer3DModel": hunyuan_video,
    "Ideogram4Transformer2DModel": ideogram,
    "JoyImageEditTransformer3DModel": joyimage,
    "Kandinsky5Transformer3DModel": kandinsky5,
    "Kandinsky6SRTransformer3DModel": kandinsky6_sr,
    "Kandinsky6Transformer3DModel": kandinsky6,
    "Krea2Transformer2DModel": krea2,
    "LTX2VideoTransformer3DModel": ltx2,
    "LTXVideoTransformer3DModel": ltx,
    "LatteTransformer3DModel": latte,
    "LongCatAudioDiTTransformer": longcat_audio,
    "LongCatImageTransformer2DModel": longcat_image,
    "Lumina2Transformer2DModel": lumina2,
    "LuminaNextDiT2DModel": lumina_next,
    "MiniMaxH3Transformer3DModel": minimax_h3,
    "MiniMaxMusic3RVQDepthDecoder": music_depth_decoder,
    "MiniMaxMusic3Transformer1DModel": minimax_music,
    "MochiTransformer3DModel": mochi,
    "MotifVideoTransformer3DModel": motif,
    "NucleusMoEImageTransformer2DModel": nucleus,
    "OmniGenTransformer2DModel": omnigen,
    "OvisImageTransformer2DModel": ovis,
    "PRXTransformer2DModel": prx,
    "PixArtTransformer2DModel": pixart,
    "PriorTransformer": prior,
    "QwenImage21Transformer2DModel": qwenimage21,
    "QwenImageTransformer2DModel": qwenimage,
    "SD3Transformer2DModel": sd3,
    "SanaTransformer2DModel": sana,
    "SanaVideoTransformer3DModel": sana_video,
    "SanaWMLTX2RefinerTransformer3DModel": sana_wm_refiner,
    "SanaWMTransformer3DModel": sana_wm,
    "SkyReelsV2Transformer3DModel": skyreels,
    "StableAudio3DiTModel": stable_audio3,
    "StableAudioDiTModel": stable_audio,
    "T5FilmDecoder": t5_film,
    "Transformer2DModel": transformer_2d,
    "TransformerTemporalModel": temporal,
    "WanAnimateTransformer3DModel": wan_animate,
    "WanTransformer3DModel": wan,
    "WanVACETransformer3DModel": wan_vace,
    "ZImageTransformer2DModel": z_image,
}
