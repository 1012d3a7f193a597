"""Sentences in many scripts, and characters that programs take for line ends or blanks, or remove."""

import unicodedata

SCRIPTS = {
    "Latin": ("Đêm nay trời không mưa.", "Zażółć gęślą jaźń!", "Ça va très bien, Æsop?"),
    "Latin, decomposed": tuple(unicodedata.normalize("NFD", one) for one in ("Élève à l'école.", "Přišel včera.")),
    "Cyrillic": ("Собака бежит по траве.", "Їжак спить під ґанком.", "Ёлка стоит в углу."),
    "Greek": ("Ο σκύλος τρέχει στο γρασίδι.", "Ποῦ εἶναι τὸ κλειδί;", "Βρέχει σήμερα."),
    "Arabic": ("الكلب يركض على العشب.", "الســـلام عليكم", "كَتَبَ الوَلَدُ رِسالَةً؟"),
    "Persian": ("می\u200cروم خانه.", "کتاب\u200cهای من کجاست؟"),
    "Hebrew": ("הכלב רץ על הדשא.", "בְּרֵאשִׁית בָּרָא אֱלֹהִים", "ירד גשם אתמול."),
    "Devanagari": ("कुत्ता घास पर दौड़ता है।", "बिल्ली सो रही है।", "क्\u200dषेत्र बड़ा है।"),
    "Bengali": ("কুকুর ঘাসে দৌড়ায়।", "বৃষ্টি পড়ছে।"),
    "Tamil": ("நாய் புல்லில் ஓடுகிறது.", "மழை பெய்கிறது."),
    "Thai": ("สุนัขวิ่งบนหญ้า", "ฝนตกเมื่อวานนี้", "แมวนอนบนหินอุ่น"),
    "Khmer": ("ឆ្កែរត់លើស្មៅ។", "ភ្លៀងធ្លាក់។"),
    "Chinese": ("狗在草地上跑。", "昨天下雨了！", "你把鑰匙放在哪裡？", "𠮷野家開門了。"),
    "Japanese": ("犬が芝生の上を走る。", "ﾈｺとネコは同じ？", "ＡＢＣ１２３を買った。"),
    "Korean": ("개가 잔디 위를 달린다.", unicodedata.normalize("NFD", "고양이가 돌 위에서 잔다.")),
    "Georgian": ("ძაღლი ბალახზე დარბის.", "გუშინ წვიმდა."),
    "Armenian": ("Շունը վազում է խոտի վրա։", "Երեկ անձրև եկավ։"),
    "Ethiopic": ("ውሻው በሣር ላይ ይሮጣል።", "ትናንት ዘነበ።"),
    "emoji": ("👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "☺ and ☺️ differ"),
}
"""Sentences by script."""

MARKS = {
    **{"zero-width joiner": "\u200d", "zero-width non-joiner": "\u200c", "zero-width blank": "\u200b"},
    **{"soft hyphen": "\u00ad", "no-break blank": "\u00a0", "narrow no-break blank": "\u202f"},
    **{"ideographic blank": "\u3000", "line separator": "\u2028", "paragraph separator": "\u2029"},
    **{"next line": "\u0085", "byte-order mark": "\ufeff", "left-to-right mark": "\u200e"},
    **{"right-to-left mark": "\u200f", "right-to-left embedding": "\u202b", "file separator": "\x1c"},
    **{"vertical tab": "\x0b", "form feed": "\x0c"},
}
"""Characters that other programs take for line ends or blanks, or remove, each of which is in the middle of a text."""

TEXTS = [*(text for texts in SCRIPTS.values() for text in texts), *(f"left{mark}right" for mark in MARKS.values())]
"""All sentences, and texts with one of the marks inside."""
