package bpe

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// sentences are texts of our own in many scripts.
var sentences = []string{
	"The router picks the worker whose cache holds most of the prompt.",
	"It's what we've said: they'll go, I'd stay, you're late, she isn't; 'Tis DON'T WE'LL I'M.",
	"Der Bäcker verkauft süße Brötchen für 3,50 € – außer montags!",
	"L'été où naquit le cœur de l'œuvre : « ça va ? »",
	"El niño comió piñas; ¿cuántas? ¡Muchísimas!",
	"Żółty wąż zjadł gęś. Příliš žluťoučký kůň. Őrült űrhajós.",
	"Съешь ещё этих мягких булок, да выпей чаю. Київ, Їжак.",
	"Το γρήγορο καφέ αλεπουδάκι πηδάει πάνω από τον σκύλο.",
	"أهلاً وسهلاً بكم في مدينة السلام، كيف حالكم اليوم؟ ١٢٣٤",
	"שלום עולם! זה מבחן של אַלֶף בֵּית.",
	"नमस्ते दुनिया, क्या हाल है? १२३ रुपये।",
	"বাংলা ভাষায় একটি ছোট বাক্য। ৪৫৬",
	"தமிழ் மொழியில் ஒரு வாக்கியம்.",
	"ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓ น้ำใจ",
	"今天天气很好，我们去公园散步吧。一共花了１２３元！",
	"東京は夜の七時、カタカナとひらがなと漢字。ｶﾞｷﾞ",
	"한국어 문장을 하나 씁니다. 안녕하세요! 각각의 글자.",
	"Tiếng Việt có nhiều dấu: phở bò, bánh mì, Nguyễn.",
	"Tie\u0302\u0301ng Vie\u0323\u0302t, e\u0301te\u0301, A\u030a, o\u0328\u0304, \u1112\u1161\u11ab\u1100\u1173\u11af",
	"ქართული ენა, Հայերեն լեզու, አማርኛ ቋንቋ, ខ្មែរ, မြန်မာ, ᏣᎳᎩ",
	"👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 🏳️‍🌈 ❤️ 😀😃😄 ⌚️ 1️⃣ 🫠🪿",
	"def f(x: int) -> str:\n    return f\"{x:>10}\"  # why\n\n\nif __name__ == '__main__':\n\tprint(f(3))\n",
	"for (int i = 0; i < 100_000; i++) { a[i] += b[i] * 0x1F; }\r\n\r\n// done\r\n",
	"<html>\n  <body class=\"a b\">\n    <p>Hi&nbsp;there</p>\n  </body>\n</html>",
	"{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Köln\",\"days\":[1,2,3]},\"n\":-1.5e-7}",
	"SELECT COUNT(*) FROM t WHERE a>=10 AND b<>'x' ORDER BY 1 DESC;--",
	"https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\Temp\\x.txt ~/.config/a-b_c",
	"1 12 123 1234 12345 1234567890 3.14159 1,000,000 ²³¹ ½ Ⅳ ٣ 五十",
	"HTTPServerError XMLHttpRequest camelCaseWord snake_case_word SCREAMING_CASE iPhone15ProMax",
	"$E = mc^2$ and \\frac{a}{b} ≤ ∑_{i=0}^∞ x_i ≈ π·r² ⇒ ∀x∈ℝ",
	"a\u00a0b\u2003c\u3000d\u200be\ufefff\u2028g\u2029h\u0085i\u000bj\fk",
}

// blankRuns are runs of spaces of many kinds.
var blankRuns = []string{" ", "  ", "   ", "        ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t", " \n", "\n ", " \n \n ",
	"\u00a0", "\u3000", "\u2003 ", "\u0085", "\u000b", "\f", "\r", " \t \n\t ", strings.Repeat(" ", 33), strings.Repeat("\n", 35), "\u2028", "▁", "▁▁"}

// lookAlikes resemble added tokens, or are some.
var lookAlikes = []string{"<|im_start|>", "<|im_end|>", "<|im_end|", "<|im_", "<|", "|>", "<|endoftext|>", "<think>", "</think>", "<think", "<tool_call>",
	"<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_7|>", "<|python_tag|>",
	"<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜User", "<｜tool▁calls▁begin｜>", "<｜end▁of▁sentence｜>", "<｜place▁holder▁no▁7｜>",
	"<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<unk>", "<pad>", "[multimodal]", "<table>", "<0x0A>", "<0xE4>",
	"<s>", "</s>", "<s", "[INST]", "[/INST]", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|endofprompt|>", "<image_soft_token>", "<h1>", "</strong>"}

var contractionsLike = []string{"'s", "'S", "'ſ", "'t", "'re", "'RE", "'rE", "'ve", "'m", "'ll", "'LL", "'lL", "'d", "'D", "'", "''", "’s", "'x", "'ｓ", "'k", "'K", "'ﬀ", "'ﬆ", "'ß", "'ŉ", "'r", "'v", "'l", "'sa"}

// pools are ranges of characters to draw from.
var pools = [][2]rune{{0x20, 0x7E}, {0x20, 0x7E}, {0xA0, 0x24F}, {0x300, 0x36F}, {0x370, 0x52F}, {0x590, 0x6FF}, {0x900, 0xDFF}, {0xE00, 0xEFF},
	{0x1100, 0x11FF}, {0x1E00, 0x1FFF}, {0x2000, 0x20CF}, {0x20D0, 0x214F}, {0x2190, 0x2BFF}, {0x3000, 0x30FF}, {0x3131, 0x318E}, {0x4E00, 0x9FFF},
	{0xAC00, 0xD7A3}, {0xE000, 0xE0FF}, {0xF900, 0xFAFF}, {0xFB00, 0xFB4F}, {0xFE00, 0xFE2F}, {0xFF00, 0xFFEF}, {0x10000, 0x107FF}, {0x11000, 0x11FFF},
	{0x1D100, 0x1D1FF}, {0x1D400, 0x1D7FF}, {0x1F1E6, 0x1F1FF}, {0x1F300, 0x1F9FF}, {0x1FA00, 0x1FBFF}, {0x2F800, 0x2FA1F}, {0xE0000, 0xE01EF}, {0, 0x10FFFF}, {0, 0x1F}}

func randomRune(r *rand.Rand) rune {
	p := pools[r.IntN(len(pools))]
	for {
		c := p[0] + rune(r.IntN(int(p[1]-p[0]+1)))
		if c < 0xD800 || c > 0xDFFF {
			return c
		}
	}
}

// randomText joins a number of short texts of all kinds.
func randomText(r *rand.Rand, atoms int) string {
	var b strings.Builder
	for range atoms {
		switch r.IntN(12) {
		case 0, 1:
			words := strings.Fields(sentences[r.IntN(len(sentences))])
			b.WriteString(words[r.IntN(len(words))])
		case 2:
			b.WriteString(sentences[r.IntN(len(sentences))])
		case 3, 4:
			b.WriteString(blankRuns[r.IntN(len(blankRuns))])
		case 5:
			b.WriteString(lookAlikes[r.IntN(len(lookAlikes))])
		case 6:
			b.WriteString(contractionsLike[r.IntN(len(contractionsLike))])
		case 7:
			fmt.Fprintf(&b, "%d", r.Uint64()>>r.IntN(64))
		case 8:
			b.WriteByte(' ')
			b.WriteString("some words of text"[:1+r.IntN(17)])
		default:
			for range 1 + r.IntN(4) {
				b.WriteRune(randomRune(r))
			}
		}
	}
	return b.String()
}
