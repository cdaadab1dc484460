"""Transformers' Trainer on a causal language model, as its documentation shows it, to be started by accelerate launch."""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments


def main():
    name = "meta-llama/Llama-3.2-1B"
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(name)
    dataset = load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split="train")

    def tokenize(examples):
        return tokenizer(examples["text"], truncation=True, max_length=512, padding="max_length")

    dataset = dataset.map(tokenize, batched=True, remove_columns=dataset.column_names)
    args = TrainingArguments(
        output_dir="out", per_device_train_batch_size=2, learning_rate=2e-5, max_steps=20, logging_steps=1, report_to="none",
        save_strategy="no", bf16=True,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=args, train_dataset=dataset, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)
    )
    trainer.train()


if __name__ == "__main__":
    main()
