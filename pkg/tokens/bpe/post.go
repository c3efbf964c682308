package bpe

import (
	"encoding/json"
	"fmt"
)

// postProcessor is any of the post-processors that are known.
type postProcessor struct {
	Type       string            `json:"type"`
	Processors []json.RawMessage `json:"processors"` // Sequence

	AddPrefixSpace *bool `json:"add_prefix_space"` // ByteLevel, which changes no id
	TrimOffsets    *bool `json:"trim_offsets"`
	UseRegex       *bool `json:"use_regex"`

	Single        []piece         `json:"single"` // TemplateProcessing
	Pair          json.RawMessage `json:"pair"`   // of two texts: never used
	SpecialTokens map[string]struct {
		ID     json.RawMessage `json:"id"`
		IDs    []uint32        `json:"ids"`
		Tokens json.RawMessage `json:"tokens"`
	} `json:"special_tokens"`
}

type piece struct {
	SpecialToken *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"Sequence"`
}

// postProcessors reads the member "post_processor": what stands around a text with
// special tokens. Each of a sequence goes around those before it.
func (t *Tokenizer) postProcessors(place string, raw json.RawMessage) error {
	if absent(raw) {
		return nil
	}
	var p postProcessor
	err := strict(place, raw, &p)
	if err != nil {
		return err
	}
	switch p.Type {
	case "Sequence":
		return each(place+".processors", p.Processors, t.postProcessors)
	case "ByteLevel":
		return nil
	case "TemplateProcessing":
		return t.template(place, &p)
	default:
		return fmt.Errorf("%s: type %q: expected Sequence, ByteLevel or TemplateProcessing", place, p.Type)
	}
}

func (t *Tokenizer) template(place string, p *postProcessor) error {
	if len(t.prefix)+len(t.suffix) > 0 {
		return fmt.Errorf("%s: TemplateProcessing: expected one", place)
	}
	seen := false
	for i, part := range p.Single {
		switch {
		case part.Sequence != nil && part.SpecialToken == nil && part.Sequence.ID == "A" && !seen:
			seen = true
		case part.SpecialToken != nil && part.Sequence == nil:
			s, ok := p.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%s.special_tokens: expected %q", place, part.SpecialToken.ID)
			}
			if seen {
				t.suffix = append(t.suffix, s.IDs...)
			} else {
				t.prefix = append(t.prefix, s.IDs...)
			}
		default:
			return fmt.Errorf("%s.single[%d]: expected a SpecialToken, or the Sequence A once", place, i)
		}
	}
	if !seen {
		return fmt.Errorf("%s.single: expected the Sequence A", place)
	}
	return nil
}
