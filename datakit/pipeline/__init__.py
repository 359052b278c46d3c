"""Plans and runs recipes, describes and lists steps, and traces documents."""
