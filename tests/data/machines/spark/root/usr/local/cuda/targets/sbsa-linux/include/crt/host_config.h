#error -- unsupported GNU version! gcc versions later than 15 are not supported!
#error -- unsupported clang version! clang version must be less than 21 and greater than 3.2 .
