"""The languages that are told apart, with the letters and words that mark them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """How a language is recognised."""

    name: str
    scripts: tuple[str, ...]
    """The first words of its letters' Unicode names."""
    common: frozenset[str] = frozenset()
    """Words that many sentences hold."""
    own: str = ""
    """Letters that hardly any other language of the script uses."""


def _language(name: str, scripts: str, common: str = "", own: str = "") -> Language:
    return Language(name, tuple(scripts.split()), frozenset(common.split()), own)


LANGUAGES: Mapping[str, Language] = {
    "en": _language(
        "english",
        "LATIN",
        "the of and to in is that it for was on are with as be at this have from or by not but what all "
        "were we when your can said there an which their will how up out them then she he his her you i "
        "has had do does it's my me",
    ),
    "es": _language(
        "spanish",
        "LATIN",
        "el la de que y en los se del las un por con una su para es al lo como más pero sus le ya este "
        "sí porque esta son entre está cuando muy sin sobre también hasta hay donde yo hola gracias",
        "ñ¿¡",
    ),
    "fr": _language(
        "french",
        "LATIN",
        "le la les de des et un une du en est que qui dans pour pas sur au avec ce il elle je nous vous "
        "par plus sont se ne mais ou où être fait très bien aux cette ses leur c'est d'un d'une l'on "
        "bonjour merci oui",
        "œ",
    ),
    "de": _language(
        "german",
        "LATIN",
        "der die das und ist in zu den nicht von mit ein eine einen dem des im auf für auch sich es an "
        "er sie wir ich als wie aus dass war hat bei nach oder aber wenn man noch nur kann sind wird "
        "einem über hallo danke ja nein",
        "ß",
    ),
    "it": _language(
        "italian",
        "LATIN",
        "il di che e la un una per non sono con del della le i gli si da è ma come più al dei nel anche "
        "lo alla mi questo questa ha ho delle essere molto perché ciao grazie nella sul",
    ),
    "pt": _language(
        "portuguese",
        "LATIN",
        "o de que e do da em um uma para com não os as no na por mais dos como mas foi ao ele das tem à "
        "seu sua ou quando muito nos já está eu também só pelo pela até isso são é olá obrigado",
        "ãõ",
    ),
    "nl": _language(
        "dutch",
        "LATIN",
        "de het een en van is in dat op te zijn met voor niet aan er die maar om ook als dan naar bij "
        "nog wel uit ik jij hij wij je hebben heeft kan deze dit over hallo",
    ),
    "sv": _language(
        "swedish",
        "LATIN",
        "och att det i en är på som för av med den till inte jag har ett om var så men de du kan från han hon",
    ),
    "da": _language(
        "danish",
        "LATIN",
        "og at det i en er på som for af med den til ikke jeg har et om var så men de du kan fra han hun",
        "øæ",
    ),
    "no": _language(
        "norwegian",
        "LATIN",
        "og at det i en er på som for av med den til ikke jeg har et om var så men de du kan fra han hun",
        "øæ",
    ),
    "fi": _language(
        "finnish",
        "LATIN",
        "ja on ei se että en oli hän mutta niin kun kuin ovat tämä minä olen mitä myös joka sen sitä voi "
        "hyvä kanssa ole",
    ),
    "pl": _language(
        "polish",
        "LATIN",
        "i w na z nie to się jest że do o jak a po co tak za ale od jego już tylko przez dla czy był są może",
        "ąęłśźżćń",
    ),
    "cs": _language(
        "czech",
        "LATIN",
        "a je se v na to že s z do o i jako za by ale si ve tak po jsem být byl jeho jsou nebo pro který",
        "ěřů",
    ),
    "ro": _language(
        "romanian",
        "LATIN",
        "și în de la cu nu pe un o este că din care a se mai pentru sunt dar am ce fi lui",
        "ățș",
    ),
    "hu": _language(
        "hungarian",
        "LATIN",
        "a az és hogy nem is egy van ez de meg volt csak mint már ha el ki még itt azt",
        "őű",
    ),
    "tr": _language(
        "turkish",
        "LATIN",
        "ve bir bu da de için ile çok ne gibi daha var ama olarak o ben kadar sonra en değil",
        "ğış",
    ),
    "vi": _language(
        "vietnamese",
        "LATIN",
        "là và của có không được cho một những người trong tôi này với để các đã khi như",
        "ăđơưạảấầậắặẹẻếềệỉịọỏốồộớờợụủứừựỳỹ",
    ),
    "id": _language(
        "indonesian",
        "LATIN",
        "yang dan di ini itu dengan untuk tidak dari dalam adalah pada akan juga saya ke karena ada bisa kami",
    ),
    "sw": _language(
        "swahili",
        "LATIN",
        "na ya wa kwa ni katika la za cha kuwa hii hiyo si yake watu sana pia lakini kama mimi huu au vya",
    ),
    "ru": _language(
        "russian",
        "CYRILLIC",
        "и в не на я что он с как это по но из у за от так же для вы мы был она они то все",
        "ыэё",
    ),
    "uk": _language(
        "ukrainian",
        "CYRILLIC",
        "і в не на я що він з як це по але із у за від так же для ви ми був вона вони та й",
        "іїєґ",
    ),
    "bg": _language(
        "bulgarian",
        "CYRILLIC",
        "и в не на аз че той с как това по но от за се да са си ще беше има е като до във ъ",
        "ъ",
    ),
    "ar": _language(
        "arabic",
        "ARABIC",
        "في من على إلى أن هذا هذه التي الذي عن مع ما لا كان هو هي كل أو بين و ذلك",
        "ةىأإ",
    ),
    "fa": _language(
        "persian",
        "ARABIC",
        "و در به از که این را با است برای آن یک خود تا بر هم نیز می شود کرد ها",
        "پچژگی",
    ),
    "ur": _language(
        "urdu",
        "ARABIC",
        "کے کی ہے میں اور کا سے کو نے یہ پر ہیں اس کہ ایک نہیں بھی تھا جو ہو",
        "ٹڈڑےہں",
    ),
    "hi": _language(
        "hindi",
        "DEVANAGARI",
        "है के में की का और से को यह पर हैं कि नहीं एक भी था लिए हो ने जो वह",
    ),
    "mr": _language(
        "marathi",
        "DEVANAGARI",
        "आहे आणि आहेत हे ते ती तो या मी नाही काय होते होता पण मध्ये साठी म्हणून केले त्या ही एक",
        "ळ",
    ),
    "ne": _language(
        "nepali",
        "DEVANAGARI",
        "छ र को मा हो यो छन् पनि गर्न भएको लागि थियो हुन्छ गरेको त्यो मेरो तपाईं",
    ),
    "zh": _language(
        "chinese",
        "CJK",
    ),
    "ja": _language(
        "japanese",
        "HIRAGANA KATAKANA CJK",
    ),
    "ko": _language(
        "korean",
        "HANGUL",
    ),
    "th": _language(
        "thai",
        "THAI",
    ),
    "el": _language(
        "greek",
        "GREEK",
    ),
    "he": _language(
        "hebrew",
        "HEBREW",
    ),
    "bn": _language(
        "bengali",
        "BENGALI",
    ),
    "gu": _language(
        "gujarati",
        "GUJARATI",
    ),
    "kn": _language(
        "kannada",
        "KANNADA",
    ),
    "ml": _language(
        "malayalam",
        "MALAYALAM",
    ),
    "pa": _language(
        "punjabi",
        "GURMUKHI",
    ),
    "ta": _language(
        "tamil",
        "TAMIL",
    ),
    "te": _language(
        "telugu",
        "TELUGU",
    ),
}
"""Languages by ISO 639-1 code."""
