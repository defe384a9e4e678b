# Makes the C source of symbols from lines that have a symbol and what C++ calls it.
{
  print "char symbol_" NR " __asm__(\"" $1 "\");"
  sub(/\(.*/, "", $2)
  if ($2 ~ /DevKernel_/)
    names = names "    {&symbol_" NR ", \"" $2 "\"},\n"
}
END {
  print "const struct { const void *symbol; const char *name; } nccl_kernel_names[] = {"
  print names "    {0, 0},\n};"
}
