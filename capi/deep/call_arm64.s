#include "funcdata.h"
#include "textflag.h"

// func Call(f func())
TEXT ·Call(SB), WRAPPER, $263808-8
	NO_LOCAL_POINTERS
	MOVD f+0(FP), R26 // where a closure expects itself
	MOVD (R26), R0
	CALL (R0)
	RET
