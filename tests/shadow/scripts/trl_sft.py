"""TRL's supervised fine-tuning with LoRA, as its documentation shows it."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer


def main():
    dataset = load_dataset("trl-lib/Capybara", split="train")
    trainer = SFTTrainer(
        model="Qwen/Qwen2.5-0.5B",
        args=SFTConfig(output_dir="out-sft", per_device_train_batch_size=2, max_length=1024, max_steps=20, logging_steps=1, report_to="none"),
        train_dataset=dataset,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
