"""Expert iteration: does a policy that imitates the offline search help it in return?"""
