"""A checkpoint's own chat template is followed, in a sandbox; else its family has one like it."""

import json

import pytest
from checkpoints import dream_config, llada_config, write_checkpoint

from dllmark.errors import InputError, ModelError
from dllmark.models.chat_template import ChatTemplate, read_chat_template
from dllmark.models.families import DREAM, LLADA
from dllmark.models.loading import load_model

CONVERSATIONS = [
    [("user", "  What is green?\n")],
    [("user", "Hi"), ("assistant", " Hello. "), ("user", "Who\tare you? ")],
    [("system", " Be brief."), ("user", "Why?")],
]

# What the published templates do: LLaDA writes a header for each message, the text without the
# white space around it, an end of turn, and the assistant's header after all of them.
LLADA_TEMPLATE = """
{%- for message in messages -%}
    {%- if loop.first %}{{ bos_token }}{% endif -%}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' -}}
    {{- message.content | trim -}}
    {{- '<|eot_id|>' -}}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
"""

# Dream is Qwen's ChatML: a system speaks first, if need be this one, and texts stay as they are.
DREAM_TEMPLATE = """
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize(
    ("family", "template"),
    [(LLADA, LLADA_TEMPLATE), (DREAM, DREAM_TEMPLATE)],
    ids=["LLaDA", "Dream"],
)
def test_the_template_of_a_family_writes_what_the_published_one_writes(family, template, messages):
    published = ChatTemplate(template, {"bos_token": "<|startoftext|>"})
    assert family.conversation(messages) == published.conversation(messages)


def test_llada_trims_the_question(tmp_path):
    write_checkpoint(tmp_path, llada_config())
    assert load_model(str(tmp_path)).chat(" Hi\n\n") == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


SETTINGS = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "model_max_length": 9}
OWN = "{{ bos_token }}{{ messages[0].content | trim }}{{ eos_token }}"


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({"chat_template": OWN}, None),
        ({"chat_template": [{"name": "rag", "template": "x"},
                            {"name": "default", "template": OWN}]}, None),
        ({"chat_template": "another"}, OWN),
        ({}, OWN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [llada_config(), dream_config()], ids=["llada", "dream"])
def test_a_checkpoint_is_asked_with_its_own_template(tmp_path, config, settings, file):
    write_checkpoint(tmp_path, config)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))
    if file:
        (tmp_path / "chat_template.jinja").write_text(file)
    assert load_model(str(tmp_path)).chat(" Hi ") == "<s>Hi</s>"


def test_a_folder_without_a_template_has_none(tmp_path):
    assert read_chat_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    assert read_chat_template(tmp_path) is None


def test_a_template_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 7}))
    with pytest.raises(ModelError, match="a chat_template that is not a text"):
        read_chat_template(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{% for",
        "{{ bos_token + 'x' }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_that_is_broken_or_reaches_outside_is_refused(source):
    with pytest.raises(ModelError, match="chat template cannot be filled"):
        ChatTemplate(source).conversation([("user", "Hi")])


def test_what_a_template_refuses_is_told():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(InputError, match="refuses this conversation: no system"):
        ChatTemplate(source).conversation([("system", "Hi")])
