# Makes comments of doxygen's out of those of goccl.h.
# The first one is of the file. Titles of sections are of nothing.
1s:^/\*:/** @file\n*:
s:^ \* \([A-Z][a-z]*\)$: * <b>\1.</b>:
/^\/\* ----.*\*\/$/d
/^\/\* ----/,/\*\//d
# A comment in lines of its own is of what follows, one behind a declaration is of that.
s:^\( *\)/\* :\1/** :
s:\([^ /].*\) /\* :\1 /**< :
s:`\([^`]*\)`:<tt>\1</tt>:g
# A percent sign is one, and a name with a dot is no file to link to.
s:%:\\%:g
s:goccl\.h:%goccl.h:g
