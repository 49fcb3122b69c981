"""How the models of Hugging Face's transformers generate."""

import inspect
from typing import Any

import torch

from parity_tests.your_port.generation.decoder import Decoder


def hugging_face(model: Any) -> Decoder:
    """Return how a model of Hugging Face's transformers generates: a decoder alone, or an encoder and a decoder."""
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise ValueError(
            f"torch_side must be a model of transformers, or (module, Decoder(prefill, step, full)); "
            f"got {type(model).__name__}"
        )
    return _encoder_and_decoder() if model.config.is_encoder_decoder else _decoder_alone()


def _decoder_alone() -> Decoder:
    def call(module: Any, ids: Any, mask: Any, cache: Any = None) -> Any:
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]  # as `generate` counts them
        accepts = "position_ids" in inspect.signature(module.forward).parameters
        more = {"position_ids": positions} if accepts else {}
        return module(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)

    def ids_and_mask(inputs: Any) -> tuple[Any, Any]:
        if others := sorted(inputs.keys() - {"input_ids", "attention_mask"}):
            raise ValueError(
                f"a decoder of transformers gets input_ids and attention_mask alone; for {', '.join(others)} give "
                "(module, Decoder(prefill, step, full))"
            )
        return inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))

    def prefill(module: Any, inputs: Any) -> Any:
        ids, mask = ids_and_mask(inputs)
        made = call(module, ids, mask)
        return made.logits[:, -1], (mask, made.past_key_values)

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        mask = torch.cat([cache[0], torch.ones_like(cache[0][:, :1])], 1)
        made = call(module, tokens[:, None], mask, cache[1])
        return made.logits[:, -1], (mask, made.past_key_values)

    def full(module: Any, inputs: Any, tokens: Any) -> Any:
        ids, mask = ids_and_mask(inputs)
        made = call(module, torch.cat([ids, tokens], 1), torch.cat([mask, torch.ones_like(tokens)], 1))
        return made.logits[:, ids.shape[1] - 1 :]

    return Decoder(prefill, step, full)


def _encoder_and_decoder() -> Decoder:
    def start(module: Any, inputs: Any) -> Any:
        first = module.config.decoder_start_token_id
        return torch.full((len(inputs["input_ids"]), 1), first), module.get_encoder()(**inputs)

    def call(module: Any, ids: Any, encoded: Any, inputs: Any, cache: Any = None) -> Any:
        given = {"attention_mask": inputs.get("attention_mask"), "encoder_outputs": encoded, "past_key_values": cache}
        return module(decoder_input_ids=ids, use_cache=True, **given)

    def prefill(module: Any, inputs: Any) -> Any:
        ids, encoded = start(module, inputs)
        made = call(module, ids, encoded, inputs)
        return made.logits[:, -1], (encoded, inputs, made.past_key_values)

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        encoded, inputs, past = cache
        made = call(module, tokens[:, None], encoded, inputs, past)
        return made.logits[:, -1], (encoded, inputs, made.past_key_values)

    def full(module: Any, inputs: Any, tokens: Any) -> Any:
        ids, encoded = start(module, inputs)
        return call(module, torch.cat([ids, tokens], 1), encoded, inputs).logits

    return Decoder(prefill, step, full)
