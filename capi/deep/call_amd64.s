#include "funcdata.h"
#include "textflag.h"

// func Call(f func())
TEXT ·Call(SB), WRAPPER, $263808-8
	NO_LOCAL_POINTERS
	MOVQ f+0(FP), DX // where a closure expects itself
	MOVQ (DX), AX
	CALL AX
	RET
