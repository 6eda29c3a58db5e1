"""Words that printed texts are made of now and then; most texts are random codes."""

_WORDS = (
    "total price sale open closed exit enter push pull stop start sugar water milk bread coffee tea juice paper "
    "box room floor gate table order number date time name model serial batch stock store shop market street road "
    "north south east west left right up down first second third front back side top bottom new old hot cold "
    "fresh dry wet fast slow free paid due tax sum net gross unit item code size width height weight color black "
    "white red green blue yellow orange small large medium apple lemon grape peach cherry banana potato onion "
    "tomato pepper salt rice pasta cheese butter egg fish meat chicken beef pork soup salad cake pie ice cream "
    "candy chocolate cookie honey jam oil vinegar mint berry Monday Tuesday Friday Sunday March April June July "
    "August October January winter summer spring autumn day week month year hour minute London Paris Berlin Tokyo "
    "Madrid Lima Oslo Rome Cairo Delhi bank hotel airport station museum park school library office garden river "
    "lake hill beach bridge tower train bus car bike ship plane taxi metro ticket seat row line platform track "
    "signal power light fuse cable plug switch voltage motor pump valve filter sensor meter panel error warning "
    "danger caution notice info help hello world welcome thanks please yes no on off in out safe test check "
    "invoice receipt account balance credit debit cash change refund ship return address phone mail web page "
    "print scan copy save load file disk data cloud server client user admin guest login key lock door window "
    "wall roof lamp chair desk"
)
WORDS = _WORDS.split()
