"""Train the translator of d2l.ai in PyTorch by the book's own recipe, in a loop of its own over `torch_ref`.

Run it: python examples/book_in_pytorch.py fra.txt. It takes minutes.
"""

import sys
import time

import torch

from book import torch as d2l
from torch_ref import AdditiveAttention, EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder, greedy_search
from torch_ref.functional.losses import clip_gradients, sentence_losses

NUM_STEPS = 10
SENTENCES = ("go .", "i'm ok .", "i won !")
SIZES = {"embed_size": 32, "num_hiddens": 32, "num_layers": 2, "cell": "lstm"}


def train(model, batches, epochs: int):
    """Train by Adam; yield the book's loss, the nats of a label token and the label tokens a second of each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(epochs):
        start, loss, labels = time.perf_counter(), 0.0, 0
        for batch in batches:
            losses, lens = sentence_losses(model, *map(torch.as_tensor, batch))
            optimizer.zero_grad()
            losses.sum().backward()
            clip_gradients(model, 1.0)
            optimizer.step()
            loss, labels = loss + float(losses.detach().sum()), labels + int(lens.sum())
        # The loss of a sentence is the mean over the label positions, of which there are NUM_STEPS - 1.
        yield loss / labels, loss / labels * (NUM_STEPS - 1), labels / (time.perf_counter() - start)


@torch.no_grad()
def translate(model, sentence: str, source, target) -> str:
    """Translate a sentence, whose words are separated by spaces, greedily."""
    memory = model.encode(*d2l.build_array_nmt([sentence.split()], source, NUM_STEPS))
    ids = {"bos": target.bos, "eos": target.eos}
    found = greedy_search(model.step, model.initial_state(memory), memory, **ids, max_len=NUM_STEPS, batch_size=1)
    return " ".join(target.to_tokens(found.ids[0, 0, : found.lengths[0, 0]])).removesuffix(" <eos>")


def main(path: str = "embedded", epochs: int = 500) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for such small tensors more threads are slower
    source, target, batches = d2l.load_data_nmt(64, NUM_STEPS, path=path, edition="2020")  # the first 1000 pairs
    decoder = Seq2SeqAttentionDecoder(len(target), **SIZES, attention=AdditiveAttention(SIZES["num_hiddens"]))
    model = EncoderDecoder(Seq2SeqEncoder(len(source), **SIZES), decoder).apply(d2l.init_seq2seq)
    course = []
    for found in train(model, batches, epochs):
        course.append(found)
        if len(course) % 50 == 0:
            print(f"epoch {len(course)} of {epochs}: loss {found[0]:.4f}", file=sys.stderr)
    last = [loss for loss, _, _ in course[-50:]]
    print(f"loss by the book's measure: {sum(last) / len(last):.4f}, the mean of the last {len(last)} epochs")
    print(f"{min(course)[0]:.4f} in the best one; {course[-1][1]:.3f} nats a token in the last one")
    print(f"{sum(speed for *_, speed in course) / len(course):,.0f} target tokens a second")
    for sentence in SENTENCES:
        print(sentence, "→", translate(model, sentence, source, target))


if __name__ == "__main__":
    main(*sys.argv[1:2])
