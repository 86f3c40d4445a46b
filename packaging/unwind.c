/* What the standard library's backtraces link against, for a program that has no tables to unwind with: a trace is empty. */
typedef struct _Unwind_Context context;

int _Unwind_Backtrace(int (*each)(context *, void *), void *argument)
{
	(void)each;
	(void)argument;
	return 5; /* the end of the stack */
}

unsigned long _Unwind_GetIP(context *frame)
{
	(void)frame;
	return 0;
}

#ifdef __ARM_EABI__
int _Unwind_VRS_Get(context *frame, int class, unsigned number, int as, void *value)
{
	(void)frame;
	(void)class;
	(void)number;
	(void)as;
	*(unsigned *)value = 0;
	return 0;
}

int __aeabi_unwind_cpp_pr0(int state, void *block, context *frame)
{
	(void)state;
	(void)block;
	(void)frame;
	return 9; /* failure */
}

int __aeabi_unwind_cpp_pr1(int state, void *block, context *frame)
{
	return __aeabi_unwind_cpp_pr0(state, block, frame);
}
#endif
