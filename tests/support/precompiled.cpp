// Only there to make the precompiled header.
int main() { return 0; }
