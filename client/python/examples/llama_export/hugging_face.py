"""Step hf: the layers in transformers' LlamaForCausalLM."""

import time

import torch
from llama_export.compare import results_of

import qgemm.torch


def hf(run, figures):
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        figures["left_out"] = "transformers is not installed"
        return
    name = next(iter(run.prompts))
    prompt, new, c = run.prompts[name], run.arguments.new, run.reference.config
    config = LlamaConfig(
        hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads, vocab_size=c.vocab_size,
        rms_norm_eps=c.rms_norm_eps, max_position_embeddings=8192, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    config.rope_theta = c.rope_theta
    with torch.device(run.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.load_state_dict(run.reference.state_dict())

    def greedy():
        started = time.perf_counter()
        mask = torch.ones_like(prompt)
        result = model.generate(prompt, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        return result[:, prompt.shape[1] :], new / (time.perf_counter() - started)

    def first_difference(a, b):
        differing = (a != b).any(0).nonzero()
        return int(differing[0]) if len(differing) else None

    greedy()
    reference, figures["bf16_tokens_per_s"] = greedy()
    # The weights are those of the quantized model already: the layers need no quantizing, only replacing.
    for path, module in run.quantized.named_modules():
        if isinstance(module, qgemm.torch.QuantizedLinear):
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    greedy()
    quantized, figures["qgemm_tokens_per_s"] = greedy()
    figures["first_difference_to_hf_bf16"] = first_difference(quantized, reference)
    figures["first_difference_to_plain_qgemm"] = first_difference(quantized, results_of(run, name)["qgemm"][0])
    figures["first_difference_of_bf16_models"] = first_difference(reference, results_of(run, name)["bf16"][0])
